"""Firecracker as what runs a machine: told what to do by its API, reached inside by vsock. It did not run where this
was written: there is no KVM. What it is told is checked against its API document (`tests/guest/test_firecracker.py`).

Options beside the course's: `argv`; `api`, `vsock`: paths of its sockets; `machine`: what it is configured with, in
this order, by path of its API; `lines`: ports of the machine's by line, `files` among them; `memory_bytes`;
`largest_view`.

It maps the file `ram` privately, so that all who are loaded from one file share it; saved is all of it: it can say
what has changed since it was saved last, not since it was loaded.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ._firecracker import Api, Call, Done, Script
from ._frames import Json
from ._freeze import NO_ROOM
from ._hybrid import Caller
from ._vmm import Place
from ._whole_view import copy_into, write_whole

if TYPE_CHECKING:
    from ._pilot import Pilot

_FULL = ("No space left on device", "Disk quota exceeded")  # strerror(3), as it is in Firecracker's words, and in ours


class Vmm:
    def __init__(self, pilot: Pilot, place: Place, options: Json, *, boots: bool) -> None:
        self._pilot, self._place, self._boots = pilot, place, boots
        self._options: Any = options
        self._api = Api(pilot.loop, self._options["api"], self._lost)
        self._callers: list[Caller] = []
        self._files: socket.socket | None = None

    def start(self, ends: Mapping[str, int]) -> int:
        if self._boots:
            write_whole(self._place.path("view"), self._place.path("table"), self._options["largest_view"])
        else:
            self._look()
        for name in ("api", "vsock"):
            with contextlib.suppress(FileNotFoundError):  # it makes them, and takes none that is there
                os.unlink(self._options[name])
        self._files, far = socket.socketpair()
        shores = {**{name: socket.socket(fileno=os.dup(fd)) for name, fd in ends.items()}, "files": far}
        for name, port in self._options["lines"].items():
            self._callers.append(self._caller(port, shores[name]))
        return self._pilot.spawn({"argv": self._options["argv"], "streams": {}}, {})

    def _lost(self, why: str) -> None:
        """A machine that nobody can stop or save is none."""
        self._pilot.end({"code": None, "signal": None, "words": why})

    def _caller(self, port: int, shore: socket.socket) -> Caller:
        # A line whose other end lies is one that has ended: the switchboard hears of it by its own end.
        return Caller(self._pilot.loop, self._options["vsock"], port, shore, lambda: None)

    def _look(self) -> None:
        size, wanted = os.stat(self._place.path("ram")).st_size, self._options["memory_bytes"]
        if size != wanted:
            raise ValueError(f"the memory of the machine has {size} bytes, not {wanted}")

    @property
    def files(self) -> socket.socket:
        assert self._files is not None
        return self._files

    def boot(self, done: Done) -> None:
        self._play(self._boot(), done)

    def load(self, done: Done) -> None:
        self._api.play(self._load(), done)

    def save(self, image: int | None, done: Done) -> None:
        for caller in self._callers:
            caller.rest()

        def saved(why: str | None) -> None:
            full = why is not None and any(words in why for words in _FULL)
            done(f"{NO_ROOM}: {why}" if full else why)

        self._api.play(self._save(image), saved)

    def go_on(self, done: Done) -> None:
        self._play(self._go_on(), done)

    def close(self) -> None:
        self._api.close()

    def _play(self, script: Script, done: Done) -> None:
        """One after which it runs."""

        def played(why: str | None) -> None:
            if why is None:
                for caller in self._callers:
                    caller.call()
            done(why)

        self._api.play(script, played)

    # scripts

    def _boot(self) -> Script:
        for path, body in self._options["machine"].items():
            yield Call("PUT", path, body)
        yield Call("PUT", "/actions", {"action_type": "InstanceStart"})

    def _load(self) -> Script:
        memory = {"backend_type": "File", "backend_path": self._place.path("ram")}
        yield Call("PUT", "/snapshot/load", {"snapshot_path": self._place.path("state"), "mem_backend": memory})

    def _save(self, image: int | None) -> Script:
        yield Call("PATCH", "/vm", {"state": "Paused"})
        # Never over the file that it runs on: this one is somebody's memory.
        state, memory = self._place.path("state.new"), self._place.path("ram.new")
        try:
            what = {"snapshot_type": "Full", "snapshot_path": state, "mem_file_path": memory}
            yield Call("PUT", "/snapshot/create", what)
            if image is None:
                os.rename(memory, self._place.path("ram"))
            else:
                _copy(memory, image, self._options["memory_bytes"])
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(memory)

    def _go_on(self) -> Script:
        yield Call("PATCH", "/vm", {"state": "Resumed"})


def _copy(memory: str, image: int, size: int) -> None:
    source = os.open(memory, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        if os.fstat(source).st_size != size:
            raise OSError(errno.EIO, "the memory that was saved is not all there")
        copy_into(source, image, size, 0)
    finally:
        os.close(source)
