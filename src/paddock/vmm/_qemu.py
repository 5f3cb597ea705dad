"""QEMU as the machine's VMM.

It takes orders on its monitor, and reads the view from our block server.

At boot it maps the file `ram` shared, so a save only needs the file. A restored machine maps it privately, as others do
with the same image. Its changes are pages of QEMU's own, and a save writes these over a copy of that file. A state
covers only the devices (`xen-save-devices-state` is the one command for it, and has nothing of Xen in it).

Options beside the driver's: `argv`, `streams` (descriptors of QEMU by line), `descriptors` by name (`files`, `monitor`,
`blocks`), `memory_bytes`, and `opens`, a filter that notifies of its opens for writing.
"""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Mapping

from . import _own_pages
from ._blocks import BlockServer, View
from ._lending import OpenResponder
from ._loop import Failed
from ._machine_files import MachineFiles
from ._qmp import Monitor
from .control import Json
from .controller import NO_ROOM

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .controller import Controller

_EVENTS = {"capabilities": [{"capability": "events", "state": True}]}


class Qemu:
    def __init__(self, controller: Controller, machine_files: MachineFiles, options: Json, *, boots: bool) -> None:
        self._controller, self._machine_files, self._boots = controller, machine_files, boots
        self._options: Any = options
        self._ours: dict[str, socket.socket] = {}
        self._monitor: Monitor | None = None
        self._pid = -1

    def start(self, ends: Mapping[str, int]) -> int:
        theirs: dict[str, socket.socket] = {}
        descriptors = self._options["descriptors"]
        for name in descriptors:
            self._ours[name], theirs[name] = socket.socketpair()
        ends = {**ends, **{name: end.fileno() for name, end in theirs.items()}}
        child: Json = {"argv": self._options["argv"], "streams": {**self._options["streams"], **descriptors}}
        self._pid = self._boot(child, ends) if self._boots else self._restore(child, ends)
        for end in theirs.values():
            end.close()
        view = View(self._machine_files.path("view"), self._machine_files.path("table"))
        BlockServer(self._controller.loop, self._ours["blocks"], view)
        self._monitor = Monitor(self._controller.loop, self._ours["monitor"])
        return self._pid

    def _boot(self, child: Json, ends: dict[str, int]) -> int:
        with open(self._machine_files.path("ram"), "wb") as file:
            file.truncate(self._options["memory_bytes"])
        return self._controller.spawn(child, ends)

    def _restore(self, child: Json, ends: dict[str, int]) -> int:
        path = self._machine_files.path("ram")
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        size, wanted = os.fstat(fd).st_size, self._options["memory_bytes"]
        if size != wanted:
            raise ValueError(f"the memory of the machine has {size} bytes, not {wanted}")
        lending = OpenResponder(self._controller.loop, path, fd, self._options["opens"])
        pid = self._controller.spawn(child, ends, before=lending.ask)
        lending.begin()
        return pid

    @property
    def files(self) -> socket.socket:
        return self._ours["files"]

    def close(self) -> None:
        if self._monitor is not None:
            self._monitor.close()

    @property
    def monitor(self) -> Monitor:
        assert self._monitor is not None
        return self._monitor

    async def boot(self) -> None:
        await self.monitor.execute("qmp_capabilities")
        await self.monitor.execute("migrate-set-capabilities", _EVENTS)

    async def load(self) -> None:
        """Load the state, and resume the machine."""
        await self.boot()
        fd = os.open(self._machine_files.path("state"), os.O_RDONLY | os.O_CLOEXEC)
        try:
            await self.monitor.execute("getfd", {"fdname": "state"}, descriptor=fd)
            await self.monitor.execute("migrate-incoming", {"uri": "fd:state"})
        finally:
            os.close(fd)
        if await self.monitor.migrated != "completed":
            raise Failed("the state of the machine cannot be loaded")
        await self.resume()

    async def save(self, image: int | None, memory: str) -> None:
        """Save the state. `image` is a copy of the machine's first memory for its present one, named `memory`."""
        if image is None and not self._boots:
            raise Failed("there is no image for its changed memory")
        # The memory refers to this view, so its copy stays with it, even if the template's later changes.
        self._machine_files.copy_up("view", "table")
        await self.monitor.execute("stop")
        state = self._machine_files.path("state.new")
        await self.monitor.execute("xen-save-devices-state", {"filename": state, "live": False})
        if image is not None:
            self._save_memory(image)
        self._machine_files.commit(memory)

    def _save_memory(self, image: int) -> None:
        try:
            _own_pages.save(self._pid, self._machine_files.path("ram"), self._options["memory_bytes"], image)
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise Failed(f"{NO_ROOM} for its memory: {os.strerror(error.errno)}") from None
            raise

    async def resume(self) -> None:
        self._machine_files.forget()
        await self.monitor.execute("cont")
