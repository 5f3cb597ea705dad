"""The process that handlers of mocks are forked from: made before the gateway has opened anything, so that there is
nothing in it. It reads orders of fixed size from the gateway, and nothing that anybody else has written."""

from __future__ import annotations

import gc
import os
import signal
import socket
import struct
import sys
from contextlib import suppress
from typing import NoReturn

from paddock.linux import caps, descriptors, landlock, prctl

from ._handler import be_a_handler

_ORDER = struct.Struct("!cQ")
_START, _END = b"s", b"e"


class HandlerHost:
    """The gateway's end. One for a gateway."""

    def __init__(self, peer: socket.socket | None, pid: int = 0) -> None:
        self._peer, self._pid, self._next = peer, pid, 0

    @property
    def available(self) -> bool:
        """False: this kernel cannot confine handlers."""
        return self._peer is not None

    def start(self) -> tuple[int, socket.socket]:
        """A new handler's number, and the socket to it. OSError: the host is gone or does not keep up."""
        if self._peer is None:
            raise OSError("there is none")
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
        """Kills it."""
        if self._peer is not None:
            with suppress(OSError):  # then it is the host's end, which is that of all
                self._peer.send(_ORDER.pack(_END, number))

    def close(self) -> None:
        """All handlers end."""
        if self._peer is not None:
            self._peer.close()
            self._peer = None
            os.waitpid(self._pid, 0)


def start_host() -> HandlerHost:
    """Forks it. The caller has one thread, and nothing in its memory that a handler may not see."""
    if landlock.kernel_abi() < 1:
        return HandlerHost(None)
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    parent = os.getpid()
    pid = os.fork()
    if pid == 0:
        _be_the_host(theirs, parent)
    theirs.close()
    ours.setblocking(False)
    return HandlerHost(ours, pid)


def _be_the_host(peer: socket.socket, parent: int) -> NoReturn:
    try:
        prctl.set_parent_death_signal(signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(0)
        null = os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC)
        for number in (0, 1):
            os.dup2(null, number)
        descriptors.close_all_but(peer.fileno())
        prctl.set_dumpable(False)
        prctl.set_no_new_privileges()
        if os.geteuid() == 0:
            caps.drop_bounding()
        caps.drop_all()
        gc.freeze()
        _serve(peer)
    except BaseException as error:
        with suppress(OSError):
            print(f"the host of handlers: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
    finally:
        os._exit(0)


def _serve(peer: socket.socket) -> None:
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
                be_a_handler(socket.socket(fileno=fds[0]), own)
            pids[number] = pid
            os.close(fds[0])
        elif kind == _END and number in pids:
            os.kill(pids[number], signal.SIGKILL)
            os.waitpid(pids.pop(number), 0)


def _reap(pids: dict[int, int]) -> None:
    """Those that ended by themselves. Their numbers are nobody else's until here."""
    for number, pid in list(pids.items()):
        if os.waitpid(pid, os.WNOHANG)[0]:
            del pids[number]
