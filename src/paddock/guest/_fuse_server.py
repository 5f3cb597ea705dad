"""The process that serves files to a virtual machine: one stream of FUSE to it, one socket to whoever started it.

A process of its own, so that a slow disk holds up nothing but this. It is told over the socket, one datagram of JSON
each: `pause` (answered when the other side has stopped asking and has all its answers), `save`, `go`.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import select
import signal
import socket
from typing import Any, NamedTuple, NoReturn

from . import _fuse_state as state
from . import _fuse_wire as wire
from ._fuse_nodes import Export, Nodes
from ._fuse_session import Session
from ._kernel import set_parent_death_signal
from ._loop import report

_PIECE = 1 << 20
_MAX_DESCRIPTORS = 32768


class FileServer(NamedTuple):
    """A handle of the running process. `control` is a SOCK_SEQPACKET."""

    pid: int
    control: socket.socket


def start_file_server(stream: int, exports: tuple[Export, ...], *, saved: int | None = None) -> FileServer:
    """Forks it; it ends with us, and when the stream does. `saved` is a directory that `save` was once told to fill.

    The caller keeps (and should close) `stream` and the exports' descriptors.
    """
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    parent = os.getpid()
    pid = os.fork()
    if pid == 0:
        _run(parent, stream, theirs, exports, saved)
    theirs.close()
    return FileServer(pid=pid, control=ours)


def _run(parent: int, stream: int, control: socket.socket, exports: tuple[Export, ...], saved: int | None) -> NoReturn:
    status = 1
    try:
        set_parent_death_signal(signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(0)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD):
            signal.signal(number, signal.SIG_DFL)
        signal.set_wakeup_fd(-1)
        _close_others({0, 1, 2, stream, control.fileno(), *(export.directory for export in exports)} | {saved or 0})
        os.umask(0)
        nodes = Nodes(exports, descriptors=_descriptors())
        server = Server(stream, control, nodes)
        if saved is not None:
            server.load(saved)
            os.close(saved)
        server.run()
        status = 0
    except BaseException as error:
        report(error)
    os._exit(status)


def _close_others(kept: set[int]) -> None:
    for fd in os.listdir("/proc/self/fd"):
        if int(fd) not in kept:
            with contextlib.suppress(OSError):  # the one that lists
                os.close(int(fd))


def _descriptors() -> int:
    """How many files may be held, after the limit was raised as far as it goes."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    most = _MAX_DESCRIPTORS * 3 if hard == resource.RLIM_INFINITY else hard
    return max(min(most // 3, _MAX_DESCRIPTORS), 64)


class Server:
    def __init__(self, stream: int, control: socket.socket, nodes: Nodes) -> None:
        os.set_blocking(stream, False)
        self._stream, self._control = stream, control
        self._nodes = nodes
        self._session = Session(nodes)
        self._splitter = wire.request_splitter()
        self._waiting: list[memoryview] = []  # messages not looked at yet
        self._unsent = bytearray()
        self._pausing = False
        self._kept: str | None = None  # where the state lies as long as it is one
        self._running = True

    def run(self) -> None:
        """Until the stream has ended, or says what is not FUSE."""
        poll = select.poll()
        poll.register(self._control, select.POLLIN)
        buffer = bytearray(_PIECE)
        while self._running:
            # Nothing more is read as long as answers are not taken: so what is kept is one piece and its answers.
            poll.register(self._stream, select.POLLOUT if self._unsent else select.POLLIN)
            for fd, _ in poll.poll():
                if fd == self._stream:
                    self._send() if self._unsent else self._receive(buffer)
                else:
                    self._ordered()

    def _receive(self, buffer: bytearray) -> None:
        try:
            got = os.readv(self._stream, [buffer])
        except BlockingIOError:
            return
        except ConnectionError:
            got = 0
        if got == 0:
            self._running = False
            return
        for message in self._splitter.feed(memoryview(buffer)[:got]):
            said = wire.word(message)
            if said is None:
                self._unsent += self._session.handle(message)
            elif said == wire.QUIET and self._pausing:
                self._pausing = False
                self._reply({"quiet": True})
        self._send()

    def _send(self) -> None:
        while self._unsent:
            try:
                sent = os.write(self._stream, self._unsent)
            except BlockingIOError:
                return
            except ConnectionError:
                self._running = False
                return
            del self._unsent[:sent]

    # orders

    def _ordered(self) -> None:
        message = self._control.recv(65536)
        if not message:
            self._running = False
            return
        order: Any = json.loads(message)
        if order["op"] == "pause":
            self._pausing = True
            self._say(wire.PAUSE)
        elif order["op"] == "go":
            self._pausing = False
            self._discard()
            self._say(wire.GO)
            self._reply({})
        elif order["op"] == "save":
            self._save(order["directory"])

    def _say(self, what: int) -> None:
        self._unsent += wire.say(what)
        self._send()

    def _save(self, where: str) -> None:
        self._kept = where
        try:
            directory = os.open(where, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                self._reply({"lost": state.save(self._nodes, directory)})
            finally:
                os.close(directory)
        except OSError as error:
            self._reply({"error": f"the state of the files could not be kept: {error.strerror}"})

    def _discard(self) -> None:
        """From here on the files are not those of the state."""
        if self._kept is not None:
            for name in state.names(os.listdir(self._kept)):
                os.unlink(os.path.join(self._kept, name))
            self._kept = None

    def load(self, directory: int) -> None:
        state.load(self._nodes, directory)
        self._say(wire.GO)

    def _reply(self, body: dict[str, Any]) -> None:
        with contextlib.suppress(OSError):
            self._control.send(json.dumps(body).encode())
