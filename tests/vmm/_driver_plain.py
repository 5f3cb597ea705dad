"""A driver whose guest is one program. The tests put it beside the drivers of `paddock.vmm`."""

from __future__ import annotations

from .control import Fault
from .controller import LINE, OUT


class Driver:
    pipes = True

    def __init__(self, controller, options):
        self._controller, self._child = controller, options

    def start(self, ends):
        return [self._controller.spawn({**self._child, "streams": {LINE: 0, OUT: 1}}, ends)]

    def show(self, request):
        raise Fault("unsupported", "this level shows no files")

    def stand(self, request, descriptors, done):
        raise Fault("unsupported", "this level saves no memory")

    def thaw(self, done): ...

    def ending(self): ...
