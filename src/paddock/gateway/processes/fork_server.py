"""Processes beside the gateway. They fork before it opens anything, so their memory has no secrets."""

from __future__ import annotations

import gc
import os
import signal
import socket
import struct
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import NoReturn, TypeAlias

from paddock.linux import children

Work: TypeAlias = Callable[[socket.socket, int], object]
"""The work of a child with its socket. It gets the pid of its parent."""

_ORDER = struct.Struct("!cQ")
_START, _END = b"s", b"e"


def fork_beside(name: str, work: Callable[[socket.socket], object]) -> tuple[socket.socket, int]:
    """Fork a process that ends with this one or with `work`, and return the socket to it and its pid.

    The caller has one thread, and nothing in its memory that the process may not see.
    """
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)

    def be_beside() -> None:
        try:
            null = os.open("/dev/null", os.O_RDWR)
            for number in (0, 1):
                os.dup2(null, number)
            os.close(null)
            work(theirs)
        except BaseException as error:
            with suppress(OSError):
                print(f"{name}: {type(error).__name__}: {error}", file=sys.stderr, flush=True)

    with theirs:
        return ours, children.fork(be_beside, theirs.fileno())


class ForkServer:
    """A process that forks others.

    `confine` restricts it, and each child does `work`.

    It reads orders of fixed size from the gateway, and no data of others.
    """

    def __init__(self, name: str, confine: Callable[[], object], work: Work) -> None:
        def serve(peer: socket.socket) -> None:
            confine()
            gc.collect()
            gc.freeze()
            _fork_each(peer, work)

        self._peer, self.pid = fork_beside(name, serve)
        self._peer.setblocking(False)
        self._next = 0

    def start(self) -> tuple[int, socket.socket]:
        """Start a process.

        Return its number, and the socket to it. Raises OSError if the server has died or is too slow.
        """
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        self._next += 1
        try:
            with theirs:
                socket.send_fds(self._peer, [_ORDER.pack(_START, self._next)], [theirs.fileno()])
        except BaseException:
            ours.close()
            raise
        ours.setblocking(False)
        return self._next, ours

    def end(self, number: int) -> None:
        """Kill a process."""
        with suppress(OSError):  # then it is the server's end
            self._peer.send(_ORDER.pack(_END, number))

    def close(self) -> None:
        """End the server. Idempotent."""
        if self._peer.fileno() >= 0:
            self._peer.close()
            os.waitpid(self.pid, 0)


def _fork_each(peer: socket.socket, work: Work) -> None:
    own, pids = os.getpid(), dict[int, int]()
    while True:
        data, fds, _, _ = socket.recv_fds(peer, _ORDER.size, 1)
        if not data:
            return
        _reap(pids)
        kind, number = _ORDER.unpack(data)
        if kind == _START and fds:
            pid = os.fork()
            if pid == 0:
                _be_a_child(peer, socket.socket(socket.AF_UNIX, socket.SOCK_STREAM, 0, fds[0]), work, own)
            pids[number] = pid
            os.close(fds[0])
        elif kind == _END and number in pids:
            os.kill(pids[number], signal.SIGKILL)
            os.waitpid(pids.pop(number), 0)


def _be_a_child(peer: socket.socket, sock: socket.socket, work: Work, server: int) -> NoReturn:
    code = 1
    try:
        peer.close()
        work(sock, server)
        code = 0
    finally:
        os._exit(code)


def _reap(pids: dict[int, int]) -> None:
    """Reap children that ended by themselves. Until then no other process can get their pids."""
    for number, pid in list(pids.items()):
        if os.waitpid(pid, os.WNOHANG)[0]:
            del pids[number]
