"""Processes beside the gateway. They fork before it opens anything, so their memory has no secrets."""

from __future__ import annotations

import gc
import os
import select
import signal
import socket
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import partial

from paddock.linux import children, confine

Work = Callable[[socket.socket], object]


def fork_beside(name: str, work: Work) -> tuple[socket.socket, int]:
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
    """A process without privileges that forks others. Each does `work`, and ends when the gateway closes its socket.

    It reads the sockets of its children from the gateway, and no data of others.
    """

    def __init__(self, name: str, work: Work) -> None:
        self._peer, self.pid = fork_beside(name, partial(_fork_each, work))
        self._peer.setblocking(False)

    def start(self) -> socket.socket:
        """Start a process, and return the socket to it. Raises OSError if the server has died or is too slow."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            with theirs:
                socket.send_fds(self._peer, [b"\0"], [theirs.fileno()])
        except BaseException:
            ours.close()
            raise
        ours.setblocking(False)
        return ours

    def close(self) -> None:
        """End the server. Idempotent."""
        if self._peer.fileno() >= 0:
            self._peer.close()
            os.waitpid(self.pid, 0)


def _fork_each(work: Work, peer: socket.socket) -> None:
    confine.give_up_powers()
    gc.collect()
    gc.freeze()
    living: dict[int, tuple[int, socket.socket]] = {}
    """The pidfd of each child, and our copy of its socket, by either."""
    poll = select.poll()
    poll.register(peer, select.POLLIN)  # first, so that a round of the loop opens nothing after it has closed something
    while True:
        for ready, _ in poll.poll():
            if ready == peer.fileno():
                data, fds, _, _ = socket.recv_fds(peer, 1, 1)
                if not data:
                    return
                for fd in fds:
                    sock = socket.socket(fileno=fd)
                    pidfd = os.pidfd_open(children.fork(partial(work, sock), fd))
                    living[pidfd] = living[fd] = pidfd, sock
                    poll.register(pidfd, select.POLLIN)
                    poll.register(fd, 0)  # only for its hang-up: the gateway has closed it
            elif ready in living:
                pidfd, sock = living[ready]
                for fd in (pidfd, sock.fileno()):
                    poll.unregister(fd)
                    del living[fd]
                with suppress(ProcessLookupError):
                    signal.pidfd_send_signal(pidfd, signal.SIGKILL)  # it has ended, or the gateway needs it no more
                os.waitid(os.P_PIDFD, pidfd, os.WEXITED)
                os.close(pidfd)
                sock.close()
