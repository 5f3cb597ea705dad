"""The pilot: runs in a vessel's jail beside the other wall, starts it, and is the only one who speaks with what is
behind it. Services have a socket handed in to it (`_hand`), each for one identity inside, or for `control`; the service
that starts it has that one on its standard input.

Its configuration: `name` of its own socket; `identities`; `child`: `argv`, `env`, `cwd`, `uid` of a program whose
input and output are the one line over which all is said (`_trunk`), or in its place `course`: the module
`_pilot_<course>` is what a level adds, made with `options`; `env`: what the sandbox's own commands have in their
environment; `waiting`: it is nobody's sandbox until somebody claims it.
Or `orders`, in place of all: the descriptor on which that is said first (`_orders`).

It ends when one of its children does, and they end with it: so does the sandbox. What waits also ends with the
connection that it was started by.
"""

from __future__ import annotations

import array
import fcntl
import os
import signal
import socket
import stat
from collections import deque
from collections.abc import Callable
from importlib import import_module
from struct import unpack
from typing import Any, NoReturn, Protocol

from . import _requests as requests
from ._connection import Channel, Connection, Handler
from ._faults import Fault, described, report
from ._frames import Json
from ._kernel import set_parent_death_signal
from ._loop import IN, ChildWatch, Loop
from ._orders import read_orders
from ._peer import Stream
from ._process import prepare_process
from ._trunk import Trunk

LOG_BYTES = 16 * 1024
LINE, OUT = "line", "out"
_CONTROL = "control"
_FAREWELL_SECONDS = 1.0
_MESSAGE = 64
_MOST_DESCRIPTORS = 4


class Course(Protocol):
    """What a level adds. It is made before anything is started, and may take part in the pilot's loop."""

    pipes: bool
    """The line is two pipes: `ends` has what the wall reads as `LINE`, and what it writes as `OUT`. Else it is a
    socket, which is `LINE`."""

    def start(self, ends: dict[str, int]) -> list[int]:
        """Starts the other wall; `ends` are its ends of the line. The end of any of these processes is that of all."""
        ...

    def open(self, channel: Channel, request: Json, descriptors: list[int]) -> Handler | None:
        """Serves what is asked on `control` and is none of the pilot's own operations."""
        ...

    def ending(self) -> None:
        """One of the processes has ended."""
        ...


def run_pilot(config: Json, *, fatal_imports: bool = False) -> NoReturn:
    code = 1
    try:
        source = config.get("orders")
        pilot = Pilot(config if source is None else read_orders(source))
        prepare_process(keep=pilot.descriptors(), fatal_imports=fatal_imports)
        pilot.run()
        code = 0
    except BaseException as error:
        report(error)
    finally:
        os._exit(code)


class Pilot:
    def __init__(self, config: Json) -> None:
        self.loop = Loop()
        self._config = config
        self._door = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        self._door.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        self._log = Log(self.loop)
        self._trunk: Trunk | None = None
        self._controls: set[Connection] = set()
        self._environment: Any = config.get("env", {})
        self._claimed = not config.get("waiting")
        self._waiting: list[_End] = []
        self._pids: list[int] = []
        self.restored = False
        """The guest has begun before, in a sandbox that this one was made of."""
        self.figures: dict[str, float] = {}
        """How long some steps took, in seconds: for whoever asks (`ping`)."""
        self._ended: Json | None = None
        self._told = False
        self._course = self._make_course()

    def _make_course(self) -> Course:
        name = self._config.get("course")
        if name is None:
            return _Plain(self, self._config["child"])
        module: Any = import_module(f"{__package__}._pilot_{name}")
        return module.Course(self, self._config.get("options", {}))

    def descriptors(self) -> tuple[int, ...]:
        """All that it has before it starts."""
        return tuple(int(name) for name in os.listdir("/proc/self/fd"))

    def run(self) -> None:
        try:
            self._set_out()
        except Exception as error:
            report(error)
            self._log.add(described(error))
            self.end({"code": 1, "signal": None})
        self.loop.run()

    def _set_out(self) -> None:
        self._take_first()
        self._door.bind(b"\0" + self._config["name"].encode())
        ends: dict[str, int] = {}
        line = _pipes(ends) if self._course.pipes else _socket(ends)
        children = ChildWatch(self.loop, self._died, lambda pid: None)
        self._pids = self._course.start(ends)
        for end in ends.values():
            os.close(end)
        self._trunk = Trunk(self.loop, line, self._offended)
        self.loop.watch(self._door.fileno(), IN, self._came)
        children.reap()

    def _offended(self, words: str) -> None:
        self.end({"code": None, "signal": None, "words": words})

    def _take_first(self) -> None:
        if stat.S_ISSOCK(os.fstat(0).st_mode):
            stream = socket.socket(fileno=_copy_above(0, 3))
            null = os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC)
            os.dup2(null, 0)
            os.close(null)
            self._serve(_CONTROL, stream)

    @property
    def trunk(self) -> Trunk:
        """There from when it has set out."""
        assert self._trunk is not None
        return self._trunk

    def note(self, words: str) -> None:
        """Into the log."""
        self._log.add(words.encode("utf-8", "backslashreplace") + b"\n")

    def log_text(self) -> str:
        return self._log.text()

    def spawn(self, child: Json, ends: dict[str, int], before: Callable[[], None] | None = None) -> int:
        """Starts a program as `child` says, as another `uid` if it has one; what it prints goes to the log. `streams`
        says by which numbers it has which of the ends. OSError.
        `before` is called there, while descriptors are where they are here."""
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
    def waits(self) -> bool:
        """It is nobody's sandbox yet."""
        return not self._claimed

    def watch(self, pid: int) -> None:
        """Its end is that of all, as of those that the course has started at first."""
        self._pids.append(pid)

    def end(self, status: Json) -> None:
        """Says how it ended, and ends. Once. `status`: `code`, `signal`, and `words`, if a course knows why."""
        if self._ended is not None:
            return
        self._course.ending()
        for pid in self._pids:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        self._ended = {**status, "log": self._log.text()}
        for waiting in self._waiting:
            self._tell(waiting)
        self.loop.after(_FAREWELL_SECONDS, self.loop.stop)
        self._leave()

    def _tell(self, waiting: _End) -> None:
        self._told = True
        waiting.channel.conclude(self._ended or {})

    def _leave(self) -> None:
        """When all have taken what there was to say; somebody may be about to ask."""
        if any(connection.unsent or not self._told for connection in self._controls):
            self.loop.after(0.01, self._leave)
        else:
            self.loop.stop()

    def _died(self, pid: int, status: int) -> None:
        if pid in self._pids:
            self._pids.remove(pid)
            code = os.waitstatus_to_exitcode(status)
            self.end({"code": code if code >= 0 else None, "signal": -code if code < 0 else None})

    def _came(self, events: int) -> None:
        space = socket.CMSG_SPACE(_MOST_DESCRIPTORS * 4) + socket.CMSG_SPACE(12)
        try:
            data, ancillary, _, _ = self._door.recvmsg(_MESSAGE, space, socket.MSG_CMSG_CLOEXEC)
        except OSError:
            return
        uid, descriptors = -1, array.array("i")
        for level, kind, payload in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                descriptors.frombytes(payload[: len(payload) - len(payload) % 4])
            elif level == socket.SOL_SOCKET and kind == socket.SCM_CREDENTIALS:
                _, uid, _ = unpack("iII", payload)
        streams = [socket.socket(fileno=fd) for fd in descriptors]
        name = data.decode("ascii", "replace")
        # Whoever may start a pilot may speak with it, and nobody else who is in here.
        if uid == os.geteuid() and len(streams) == 1 and self._serve(name, streams[0]):
            return
        for stream in streams:
            stream.close()

    def _serve(self, name: str, stream: socket.socket) -> bool:
        if name == _CONTROL:
            self._controls.add(Connection(self.loop, stream, self._open, self._hung_up))
            return True
        if name not in self._config["identities"]:
            return False
        self.trunk.add(name, stream)
        return True

    def _hung_up(self, connection: Connection) -> None:
        self._controls.discard(connection)
        if not self._claimed:
            self.end({"code": None, "signal": None, "words": "nobody has claimed it"})

    def _open(self, channel: Channel, request: Json, descriptors: list[int]) -> Handler | None:
        operation = requests.text(request, "op")
        if operation == "end":
            waiting = _End(channel, self._waiting)
            channel.reply({})
            if self._ended is not None:
                self._tell(waiting)
            return waiting
        if operation == "ping":
            said = {"pid": os.getpid(), "children": self._pids, "figures": self.figures, "restored": self.restored}
            channel.answer(said)
        elif operation == "log":
            channel.answer({"log": self._log.text()})
        elif operation == "environment":
            channel.pour({"env": self._environment})
        elif operation == "claim":  # services are trusted here: what they say of it is so
            self._claimed, self._environment = True, request.get("env", {})
            channel.answer({})
        else:
            return self._course.open(channel, request, descriptors)
        return None


class _End(Handler):
    """Somebody waits for the end."""

    def __init__(self, channel: Channel, waiting: list[_End]) -> None:
        self.channel, self._waiting = channel, waiting
        waiting.append(self)

    def close(self) -> None:
        self._waiting.remove(self)
        self.channel.end()


class _Plain:
    """A level whose wall is one program."""

    pipes = True

    def __init__(self, pilot: Pilot, child: Json) -> None:
        self._pilot, self._child = pilot, child

    def start(self, ends: dict[str, int]) -> list[int]:
        return [self._pilot.spawn({**self._child, "streams": {LINE: 0, OUT: 1}}, ends)]

    def open(self, channel: Channel, request: Json, descriptors: list[int]) -> Handler | None:
        raise Fault("unsupported", f"the pilot cannot do {requests.text(request, 'op')!r}"[:200])

    def ending(self) -> None: ...


class Log:
    """The last of what children print: `writer` is theirs."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._reader, self.writer = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(self._reader, False)
        self._parts: deque[bytes] = deque()
        self._bytes = 0
        loop.watch(self._reader, IN, self._came)

    def add(self, data: bytes) -> None:
        self._parts.append(data)
        self._bytes += len(data)
        while self._bytes - len(self._parts[0]) >= LOG_BYTES:
            self._bytes -= len(self._parts.popleft())

    def _came(self, events: int) -> None:
        self._read()

    def _read(self) -> bool:
        """Whether there was anything."""
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


def _socket(ends: dict[str, int]) -> Stream:
    ours, theirs = socket.socketpair()
    ends[LINE] = theirs.detach()
    return ours


def _pipes(ends: dict[str, int]) -> Stream:
    ends[LINE], writer = os.pipe2(os.O_CLOEXEC)
    reader, ends[OUT] = os.pipe2(os.O_CLOEXEC)
    return reader, writer


def _become_child(child: Json, wanted: dict[int, int], parent: int) -> NoReturn:
    if "uid" in child:
        uid = int(child["uid"])
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
    set_parent_death_signal(signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)
    high = max(wanted) + 1
    moved = {number: _copy_above(fd, high) for number, fd in wanted.items()}
    for number, fd in moved.items():
        os.dup2(fd, number)
    for number in (signal.SIGPIPE, signal.SIGCHLD):
        signal.signal(number, signal.SIG_DFL)
    os.chdir(child.get("cwd", "/"))
    os.execve(child["argv"][0], child["argv"], child.get("env", {}))


def _copy_above(fd: int, low: int) -> int:
    return fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, low)
