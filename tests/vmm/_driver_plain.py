"""A driver whose guest is one program. The tests put it beside the drivers of `paddock.vmm`."""

from __future__ import annotations

from .control import Fault
from .controller import PORT, PORT_OUTPUT


class Driver:
    pipes = True
    saves = False

    def __init__(self, controller, options):
        self._controller, self._child = controller, options

    def start(self, ends):
        return [self._controller.spawn({**self._child, "streams": {PORT: 0, PORT_OUTPUT: 1}}, ends)]

    def show(self, request):
        raise Fault("unsupported", "this level shows no files")

    async def save(self, image, memory): ...

    async def thaw(self): ...

    def on_end(self): ...
