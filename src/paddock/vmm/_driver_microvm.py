"""The part of the controller for a virtual machine, beside its port.

It makes the machine's disks (`_erofs`), serves its files (`_shares`), and makes QEMU (`_qemu`) load or save a state.
Its files lie in the sandbox's own tree (`_machine_files.MachineFiles`): `disk`, `view` and `table` (see `_erofs`), and
its memory. While it is paused, also `state` and `moment`.
"""

from __future__ import annotations

from importlib import import_module

from ._loop import FAILURES
from ._machine_files import MachineFiles
from ._qemu import Qemu
from .control import Fault, Json

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ._shares import Shares
    from .controller import Controller


class Driver:
    """The driver of a virtual machine.

    Options: the ones of `_qemu`, `place`, `stamp` (the machine that a state is for), and `memory` (the image to which
    it belongs).

    `exports`: see `_shares`. A machine that boots also has `make`: `sources` of its view, and `disk`, a command that
    makes one.
    """

    pipes = False
    saves = True

    def __init__(self, controller: Controller, options: Json) -> None:
        self._controller, self._options = controller, options
        self._machine_files = MachineFiles(str(options["place"]), str(options["stamp"]), str(options.get("memory", "")))
        self._make: Any = options.get("make")
        controller.restored = self._make is None
        self._shares: Shares | None = None
        # Only the machines that need these modules import them, before the seal, because a create waits for the
        # imports.
        self._disks: Any = None if self._make is None else import_module(f"{__package__}._erofs")
        serves_files = bool(options.get("exports")) or controller.is_spare
        self._files: Any = import_module(f"{__package__}._shares") if serves_files else None
        self._qemu = Qemu(controller, self._machine_files, options, boots=self._make is not None)

    def start(self, ends: dict[str, int]) -> list[int]:
        if self._make is not None:
            self._disks.make_disks(self._controller, self._machine_files, self._make)
        else:
            self._machine_files.check()
        pid = self._qemu.start(ends)
        self._controller.loop.start(self._start_machine())
        exports: Any = self._options.get("exports")
        return [pid, self._show(exports)] if exports else [pid]

    def _show(self, exports: Any) -> int:
        """Start the file server, and return its pid."""
        self._shares = shares = self._files.Shares(
            self._controller.loop, self._qemu.files, exports, self._machine_files.path("files")
        )
        return shares.pid

    def show(self, request: Json) -> None:
        """Serve the files of a claimed spare, once."""
        if self._shares is not None or self._files is None:
            raise Fault("invalid_state", "this machine has its files")
        self._controller.watch(self._show(request["exports"]))

    def on_end(self) -> None:
        self._qemu.close()

    # save and resume

    async def save(self, image: int | None, memory: str) -> None:
        """Pause the file server, then save: a save must not cut a request in the middle."""
        if self._shares is not None:
            await self._shares.pause()
        await self._qemu.save(image, memory)

    async def thaw(self) -> None:
        try:
            await self._qemu.resume()
        finally:
            if self._shares is not None:
                self._shares.resume()

    async def _start_machine(self) -> None:
        try:
            await (self._qemu.load() if self._make is None else self._qemu.boot())
        except FAILURES as error:
            self._controller.end({"code": None, "signal": None, "words": str(error)})
