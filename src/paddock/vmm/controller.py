"""The controller: it runs in a VMM's jail beside the guest, starts it, and is its only peer.

A service passes it a socket (`_accept`), for one identity inside, or for `control`. The service that starts it has its
connection on the standard input.

Its configuration: `name` of its socket, `identities`, and `driver`, which names the module `_driver_<driver>` of a
level, with its `options`. `env` is the environment of the sandbox's commands.
`waiting`: it is a spare until a claim. `fatal_imports`, in tests: an import after the start ends the process.

It ends with any of its children, and ends the others. The sandbox then ends too. A spare also ends with the connection
of its starter.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import signal
import socket
import stat
from collections import deque
from collections.abc import Callable
from importlib import import_module
from struct import unpack

from paddock.linux.prctl import end_with
from paddock.wire import descriptors_in

from ._loop import FAILURES, IN, ChildWatch, Loop, Outcome, described, report
from ._peer import Stream
from ._trunk import Trunk
from .control import Control, Fault, Json, read_orders
from .process import prepare_process

TYPE_CHECKING = False  # to import typing is a fifth of what a controller's start costs
if TYPE_CHECKING:
    from typing import Any, NoReturn, Protocol

    class Driver(Protocol):
        """The part of a level.

        The controller makes it before it starts a process, and it may use the controller's loop.
        """

        pipes: bool
        """The port is two pipes: `ends` has `PORT` for the guest's input, and `PORT_OUTPUT` for its output.

        Otherwise it is a socket, which is `PORT`.
        """

        def start(self, ends: dict[str, int]) -> list[int]:
            """Start the guest. `ends` are its ends of the port. The end of any of these processes ends all."""
            ...

        def show(self, request: Json) -> None:
            """Serve the requested files."""
            ...

        @property
        def saves(self) -> bool:
            """Whether it can save the guest's state."""
            ...

        async def save(self, image: int | None, memory: str) -> None:
            """Pause the guest and save its state. The trunk is paused. `image` is where memory goes, and `memory` its
            name. Raises one of FAILURES: `thaw` follows in any case."""
            ...

        async def thaw(self) -> None:
            """Resume the guest. Raises one of FAILURES."""
            ...

        def on_end(self) -> None:
            """Prepare for the end: one of the processes has ended."""
            ...


NO_ROOM = "there is no room"
"""Prefix of the reason of a failed save if the disk is full."""
LOG_BYTES = 16 * 1024
PORT, PORT_OUTPUT = "line", "out"
_CONTROL = "control"
_REPORT_SECONDS = 1.0
_MESSAGE = 64
_MOST_DESCRIPTORS = 4


def main(arguments: list[str]) -> NoReturn:
    code = 1
    try:
        config: Json = json.loads(arguments[0]) if arguments else read_orders()
        controller = Controller(config)
        prepare_process(fatal_imports=config.get("fatal_imports") is True)
        controller.run()
        code = 0
    except BaseException as error:
        report(error)
    finally:
        os._exit(code)


class Controller:
    def __init__(self, config: Json) -> None:
        self.loop = Loop()
        self._config = config
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        self._log = Log(self.loop)
        self._trunk: Trunk | None = None
        self._controls: set[Control] = set()
        self._environment: Any = config.get("env", {})
        self._claimed = not config.get("waiting")
        self._waiting: list[tuple[Control, int]] = []
        self._frozen: _Freeze | None = None
        self._pids: list[int] = []
        self.restored = False
        """The guest began in an earlier sandbox, from which this one comes."""
        self._ended: Json | None = None
        self._end_reported = False
        module: Any = import_module(f"{__package__}._driver_{config['driver']}")
        self.driver: Driver = module.Driver(self, config["options"])

    def run(self) -> None:
        try:
            self._start()
        except Exception as error:
            report(error)
            self._log.add(described(error))
            self.end({"code": 1, "signal": None})
        self.loop.run()

    def _start(self) -> None:
        self._serve_starter()
        self._socket.bind(b"\0" + self._config["name"].encode())
        ends: dict[str, int] = {}
        port = _pipes(ends) if self.driver.pipes else _socket(ends)
        children = ChildWatch(self.loop, self._died)
        self._pids = self.driver.start(ends)
        for end in ends.values():
            os.close(end)
        self._trunk = Trunk(self.loop, port, lambda why: self.end({"code": None, "signal": None, "words": why}))
        self.loop.watch(self._socket.fileno(), IN, self._accept)
        children.reap()

    def _serve_starter(self) -> None:
        if stat.S_ISSOCK(os.fstat(0).st_mode):
            stream = socket.socket(fileno=_copy_above(0, 3))
            null = os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC)
            os.dup2(null, 0)
            os.close(null)
            self._serve(_CONTROL, stream)

    @property
    def trunk(self) -> Trunk:
        """The trunk to the guest, which has started."""
        assert self._trunk is not None
        return self._trunk

    def note(self, words: str) -> None:
        """Add a line to the log."""
        self._log.add(words.encode("utf-8", "backslashreplace") + b"\n")

    def log_text(self) -> str:
        return self._log.text()

    def spawn(self, child: Json, ends: dict[str, int], before: Callable[[], None] | None = None) -> int:
        """Start a program as `child` says, as another `uid` if it has one.

        Its output goes to the log. `streams` assigns descriptor numbers to the ends.

        `before` runs in the child, before its descriptors move. Raises OSError.
        """
        wanted = {int(number): ends[name] for name, number in child["streams"].items()}
        null = os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC)
        wanted = {0: null, 1: self._log.writer, 2: self._log.writer} | wanted
        parent = os.getpid()
        pid = os.fork()
        if pid == 0:
            try:
                if before is not None:
                    before()
                _become_child(child, wanted, parent)
            except BaseException as error:
                os.dup2(self._log.writer, 2)
                report(error)
            finally:
                os._exit(127)
        os.close(null)
        return pid

    @property
    def is_spare(self) -> bool:
        """Whether it is still a spare."""
        return not self._claimed

    def watch(self, pid: int) -> None:
        """Watch a process, whose end ends all, like the first processes of the driver."""
        self._pids.append(pid)

    def end(self, status: Json) -> None:
        """Report how it ended, and end. Idempotent. `status`: `code`, `signal`, and `words`, if a driver knows why."""
        if self._ended is not None:
            return
        self.driver.on_end()
        for pid in self._pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._ended = {**status, "log": self._log.text()}
        for control, id in self._waiting:
            control.answer(id, self._ended)
        self._end_reported = bool(self._waiting)
        self.loop.after(_REPORT_SECONDS, self.loop.stop)
        self._leave()

    def _leave(self) -> None:
        """Leave after all services have received the last message. One may be about to ask."""
        if not self._end_reported or any(control.unsent for control in self._controls):
            self.loop.after(0.01, self._leave)
        else:
            self.loop.stop()

    def _died(self, pid: int, status: int) -> None:
        if pid in self._pids:
            self._pids.remove(pid)
            code = os.waitstatus_to_exitcode(status)
            self.end({"code": code if code >= 0 else None, "signal": -code if code < 0 else None})

    def _accept(self, events: int) -> None:
        space = socket.CMSG_SPACE(_MOST_DESCRIPTORS * 4) + socket.CMSG_SPACE(12)
        try:
            data, ancillary, _, _ = self._socket.recvmsg(_MESSAGE, space, socket.MSG_CMSG_CLOEXEC)
        except OSError:
            return
        uid = -1
        for level, kind, payload in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_CREDENTIALS:
                _, uid, _ = unpack("iII", payload)
        streams = [socket.socket(fileno=fd) for fd in descriptors_in(ancillary)]
        name = data.decode("ascii", "replace")
        # A user that may start a controller may use it, and no other process in here.
        if uid == os.geteuid() and len(streams) == 1 and self._serve(name, streams[0]):
            return
        for stream in streams:
            stream.close()

    def _serve(self, name: str, stream: socket.socket) -> bool:
        if name == _CONTROL:
            self._controls.add(Control(self.loop, stream, self._serve_control, self._hung_up))
            return True
        if name not in self._config["identities"]:
            return False
        self.trunk.add(name, stream)
        return True

    def _hung_up(self, control: Control) -> None:
        self._controls.discard(control)
        self._waiting = [waiting for waiting in self._waiting if waiting[0] is not control]
        if self._frozen is not None and self._frozen.control is control:
            self._frozen.thaw.succeed()
        if not self._claimed:
            self.end({"code": None, "signal": None, "words": "no sandbox claimed it"})

    def _serve_control(self, control: Control, id: int, request: Json, descriptors: list[int]) -> Json | None:
        match request.get("op"):
            case "end" if self._ended is None:
                self._waiting.append((control, id))
            case "end":
                self._end_reported = True
                return self._ended
            case "ping":
                return {"pid": os.getpid(), "children": self._pids, "restored": self.restored}
            case "log":
                return {"log": self._log.text()}
            case "environment":
                return {"env": self._environment}
            case "claim":  # services are trusted here: what they say of it is so
                self._claimed, self._environment = True, request.get("env", {})
                return {}
            case "show":
                self.driver.show(request)
                return {}
            case "freeze":
                if self._frozen is not None:
                    raise Fault("invalid_state", "somebody is just taking a copy of this sandbox")
                if not self.driver.saves:
                    raise Fault("unsupported", "this sandbox's memory cannot be saved")
                self._frozen = _Freeze(control)
                self.loop.start(self._freeze(self._frozen, id, descriptors.pop() if descriptors else None, request))
            case "thaw":
                if self._frozen is None or self._frozen.control is not control:
                    return {}  # it could not be saved, and goes on
                self._frozen.thaw.succeed(id)
            case other:
                raise Fault("unsupported", f"the controller cannot do {other!r}"[:200])
        return None

    async def _freeze(self, freeze: _Freeze, id: int, image: int | None, request: Json) -> None:
        """Pause the trunk and save the guest: a save must not cut a message in the middle. Then wait for the thaw.

        It owns the descriptor `image`, to which memory goes.
        """
        unsaved = None
        try:
            await self.trunk.pause()
            await self.driver.save(image, str(request.get("memory", "")))
        except FAILURES as error:
            unsaved = _unsaved(str(error))
        finally:
            if image is not None:
                os.close(image)  # no program in here writes it from now on
        if unsaved is not None:
            freeze.control.refuse(id, unsaved)
        else:
            freeze.control.answer(id, {})
            await (Outcome() if request.get("for_good") is True else freeze.thaw)
        refusal = None
        try:
            await self.driver.thaw()
        except FAILURES as error:
            refusal = Fault("invalid_state", f"it stays frozen: {error}"[:500])
        self.trunk.resume()
        self._frozen = None
        asked: int | None = freeze.thaw.value
        if asked is not None and refusal is None:
            freeze.control.answer(asked, {})
        elif asked is not None and refusal is not None:
            freeze.control.refuse(asked, refusal)


class _Freeze:
    """A stop of the guest with a saved state.

    It lasts until the requesting service thaws it, or leaves. With `for_good` in its request it lasts forever.
    """

    def __init__(self, control: Control) -> None:
        self.control = control
        self.thaw = Outcome()
        """The end: its value is the id of the request to answer, if any."""


class Log:
    """The last output of children. They write to `writer`."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._reader, self.writer = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(self._reader, False)
        self._parts: deque[bytes] = deque()
        self._bytes = 0
        loop.watch(self._reader, IN, self._readable)

    def add(self, data: bytes) -> None:
        self._parts.append(data)
        self._bytes += len(data)
        while self._bytes - len(self._parts[0]) >= LOG_BYTES:
            self._bytes -= len(self._parts.popleft())

    def _readable(self, events: int) -> None:
        self._read()

    def _read(self) -> bool:
        """Read some output. Return whether there was any."""
        try:
            data = os.read(self._reader, LOG_BYTES)
        except BlockingIOError:
            return False
        self.add(data)
        return bool(data)

    def text(self) -> str:
        for _ in range(64):  # what was printed before the end; one who never ceases has no end
            if not self._read():
                break
        return b"".join(self._parts)[-LOG_BYTES:].decode("utf-8", "backslashreplace")


def _unsaved(why: str) -> Fault:
    words = f"its memory could not be saved: {why.partition(chr(10))[0]}"[:500]
    full = why.startswith(NO_ROOM)
    return Fault("file", words, name=errno.errorcode[errno.ENOSPC]) if full else Fault("invalid_state", words)


def _socket(ends: dict[str, int]) -> Stream:
    ours, theirs = socket.socketpair()
    ends[PORT] = theirs.detach()
    return ours


def _pipes(ends: dict[str, int]) -> Stream:
    ends[PORT], writer = os.pipe2(os.O_CLOEXEC)
    reader, ends[PORT_OUTPUT] = os.pipe2(os.O_CLOEXEC)
    return reader, writer


def _become_child(child: Json, wanted: dict[int, int], parent: int) -> NoReturn:
    if "uid" in child:
        uid = int(child["uid"])
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
    end_with(parent)
    high = max(wanted) + 1
    moved = {number: _copy_above(fd, high) for number, fd in wanted.items()}
    for number, fd in moved.items():
        os.dup2(fd, number)
    for number in (signal.SIGPIPE, signal.SIGCHLD):
        signal.signal(number, signal.SIG_DFL)
    os.chdir("/")
    os.execve(child["argv"][0], child["argv"], child.get("env", {}))


def _copy_above(fd: int, low: int) -> int:
    return fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, low)
