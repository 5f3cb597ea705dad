"""What the pilot of a virtual machine does beside its lines: makes the machine's disks, serves the blocks of its view,
has QEMU load a state or save one.

Files of the machine, in the sandbox's own tree: `ram` (mapped by QEMU, shared), `disk`, `view` and `table` (see
`_view`); `state` and `lines` are there only while nobody runs on them: whoever loads them removes them, since memory
and disk go on.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from . import _requests as requests
from ._blocks import BlockServer, View
from ._connection import Channel, Handler
from ._faults import Fault
from ._frames import Json
from ._qmp import Awaited, Command, Failed, Monitor, Script
from ._shares import Shares
from ._view import Owner, Source, write_view

if TYPE_CHECKING:
    from ._pilot import Pilot

_SHARED = {"capabilities": [{"capability": "x-ignore-shared", "state": True}, {"capability": "events", "state": True}]}
_ENDED = Awaited("MIGRATION", "status", ("completed", "failed", "cancelled"))
_FASTEST = 1 << 40


class Course:
    """Options: `place`; `argv` of QEMU; `descriptors` by name (`files`, `monitor`, `blocks`); `stamp`: which machine a
    state is for; `exports`: see `_shares`; and, for a machine that boots, `make`: `sources` of its view, and `disk`: a
    command that makes one."""

    def __init__(self, pilot: Pilot, options: Json) -> None:
        self._pilot, self._options = pilot, options
        self._place = str(options["place"])
        self._frozen: Freeze | None = None
        self._make: Any = options.get("make")
        self._ours: dict[str, socket.socket] = {}
        self._monitor: Monitor | None = None
        self._shares: Shares | None = None

    def start(self, ends: dict[str, int]) -> list[int]:
        if self._make is not None:
            self._make_disks()
        else:
            self._look()
        theirs: dict[str, socket.socket] = {}
        descriptors: Any = self._options["descriptors"]
        for name in descriptors:
            self._ours[name], theirs[name] = socket.socketpair()
        streams = {**self._options["streams"], **descriptors}  # pyright: ignore[reportGeneralTypeIssues]
        child: Json = {"argv": self._options["argv"], "streams": streams}
        pid = self._pilot.spawn(child, {**ends, **{name: end.fileno() for name, end in theirs.items()}})
        for end in theirs.values():
            end.close()
        loop = self._pilot.loop
        BlockServer(loop, self._ours["blocks"], View(self._path("view"), self._path("table")), lambda: None)
        self._monitor = Monitor(loop, self._ours["monitor"])
        self._play(self._negotiate() if self._make is not None else self._load(), self._begun)
        if not self._options.get("exports"):
            return [pid]
        self._shares = Shares(loop, self._ours["files"], self._options["exports"], self._path("files"))
        return [pid, self._shares.pid]

    def open(self, channel: Channel, request: Json, descriptors: list[int]) -> Handler | None:
        if requests.text(request, "op") == "environment":
            channel.answer({"env": self._options["env"]})
            return None
        if requests.text(request, "op") != "freeze":
            raise Fault("unsupported", f"the pilot cannot do {requests.text(request, 'op')!r}"[:200])
        if self._frozen is not None:
            raise Fault("invalid_state", "somebody is just taking a copy of this machine")
        self._frozen = Freeze(self, channel, for_good=request.get("for_good") is True)
        self._stand(self._frozen.stands)
        return self._frozen

    def _stand(self, done: Callable[[str | None], None]) -> None:
        """Its files first: what it has under way there must not be cut off in the middle."""

        def quiet(why: str | None) -> None:
            if why is None:
                self._play(self._save(), done)
            else:
                done(why)

        if self._shares is None:
            quiet(None)
        else:
            self._shares.stand(quiet)

    def ending(self) -> None:
        if self._monitor is not None:
            self._monitor.close()

    def thaw(self, done: Callable[[str | None], None]) -> None:
        def over(why: str | None) -> None:
            self._frozen = None
            if self._shares is not None:
                self._shares.go()
            done(why)

        self._play(self._go_on(), over)

    def _play(self, script: Script, done: Callable[[str | None], None]) -> None:
        assert self._monitor is not None
        self._monitor.play(script, done)

    # scripts

    def _negotiate(self) -> Script:
        yield Command("qmp_capabilities")
        yield Command("migrate-set-capabilities", _SHARED)
        yield Command("migrate-set-parameters", {"max-bandwidth": _FASTEST})

    def _load(self) -> Script:
        yield from self._negotiate()
        fd = os.open(self._path("state"), os.O_RDONLY | os.O_CLOEXEC)
        try:
            yield Command("getfd", {"fdname": "state"}, descriptor=fd)
            yield Command("migrate-incoming", {"uri": "fd:state"})
        finally:
            os.close(fd)
        if (yield _ENDED)["status"] != "completed":
            raise Failed("the state of the machine cannot be loaded")
        self._forget()
        yield Command("cont")

    def _save(self) -> Script:
        for name in ("view", "table"):  # the memory knows this view: its copy comes along, whatever is baked later
            os.close(os.open(self._path(name), os.O_RDWR | os.O_CLOEXEC))
        yield Command("stop")
        fd = os.open(self._path("state.new"), os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            yield Command("getfd", {"fdname": "state"}, descriptor=fd)
            yield Command("migrate", {"uri": "fd:state"})
            if (yield _ENDED)["status"] != "completed":
                raise Failed("the state of the machine cannot be saved")
        finally:
            os.close(fd)
        lines = {"stamp": self._options["stamp"], "marks": self._pilot.marks()}
        with open(self._path("lines"), "wb") as file:
            file.write(json.dumps(lines).encode())
        os.rename(self._path("state.new"), self._path("state"))

    def _go_on(self) -> Script:
        self._forget()
        yield Command("cont")

    def _begun(self, why: str | None) -> None:
        if why is not None:
            self._pilot.end({"code": None, "signal": None, "why": why})

    # files

    def _path(self, name: str) -> str:
        return f"{self._place}/{name}"

    def _forget(self) -> None:
        """From here on memory and disk are not those of the state."""
        for name in ("state", "lines", "state.new"):
            try:
                os.unlink(self._path(name))
            except FileNotFoundError:
                continue

    def _look(self) -> None:
        """OSError, ValueError: what is there is not what was saved, or was saved by another machine."""
        with open(self._path("lines"), "rb") as file:
            saved = json.loads(file.read())
        if saved["stamp"] != self._options["stamp"]:
            raise ValueError(f"the state was saved by {saved['stamp']}, and this is {self._options['stamp']}")
        size = os.stat(self._path("ram")).st_size
        if size != self._options["memory_bytes"]:
            raise ValueError(f"the memory of the machine has {size} bytes, not {self._options['memory_bytes']}")
        self._pilot.resume(saved["marks"])

    def _make_disks(self) -> None:
        os.makedirs(self._place, exist_ok=True)
        sources = tuple(_source(source) for source in self._make["sources"])
        with open(self._path("view"), "wb") as metadata, open(self._path("table"), "wb") as table:
            write_view(sources, metadata, table)
        for name, size in (("disk", self._make["disk_bytes"]), ("ram", self._options["memory_bytes"])):
            with open(self._path(name), "wb") as file:
                file.truncate(size)
        command: Json = {"argv": [*self._make["format"], self._path("disk")], "streams": {}}
        _, status = os.waitpid(self._pilot.spawn(command, {}), 0)
        if status != 0:
            raise OSError("no disk was made")


class Freeze(Handler):
    """The machine stands, its state is in its tree, for as long as the channel is open; or until it is ended."""

    def __init__(self, course: Course, channel: Channel, *, for_good: bool) -> None:
        self._course, self._channel, self._for_good = course, channel, for_good
        self._closing = self._stands = False

    def stands(self, why: str | None) -> None:
        self._stands = True
        if why is not None:
            self._channel.end(Fault("invalid_state", f"the machine could not be frozen: {why}"[:500]))
            self._course.thaw(_pass_over)
        elif self._closing:
            self.close()
        else:
            self._channel.reply({})

    def close(self) -> None:
        self._closing = True
        if self._for_good:
            self._channel.end()
        elif self._stands:
            self._stands = False
            self._course.thaw(self._over)

    def _over(self, why: str | None) -> None:
        self._channel.end(None if why is None else Fault("invalid_state", f"the machine stays frozen: {why}"[:500]))


def _pass_over(why: str | None) -> None: ...


def _source(fields: Any) -> Source:
    owners = fields.get("owners")
    return Source(
        place=fields["place"],
        path=fields["path"],
        without=frozenset(fields.get("without", ())),
        owners=None if owners is None else {path: Owner(*owner) for path, owner in owners.items()},
        nobody=int(fields.get("nobody", -1)),
    )
