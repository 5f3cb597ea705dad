"""Processes that this program forks from itself. The caller has one thread."""

from __future__ import annotations

import math
import os
import resource
import select
import signal
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple

from paddock.linux import descriptors, prctl


def fork(work: Callable[[], object], *kept: int) -> int:
    """Fork a child that does `work`, and ends with that or with this process. Return its pid.

    It has no descriptors above 2 but those in `kept`. Its exit code is 1 if `work` raises.
    """
    parent = os.getpid()
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        prctl.end_with(parent)
        descriptors.close_all_but(*kept)
        work()
        code = 0
    finally:
        os._exit(code)


_MESSAGE_BYTES, _MOST_DESCRIPTORS = 300, 8


class Child(NamedTuple):
    """A forked process, and the socket of its requester. It may take so many `seconds`."""

    pidfd: int
    requester: socket.socket
    seconds: float = math.inf


def serve(
    peer: socket.socket,
    begin: Callable[[bytes, list[int]], Child],
    finish: Callable[[Child, os.waitid_result | None, bool], object] | None = None,
    *,
    idle: float = math.inf,
) -> None:
    """Fork a child for each message of `peer`, until that ends, or nothing has happened for `idle` seconds.

    It kills a child that is late, or whose requester has closed its socket. `begin` gets the message with its
    descriptors, and `finish` each child that has ended, how, and whether it was late.
    """
    living: dict[Child, float] = {}
    patience = math.inf  # until the first child it waits: the peer that has just started it sends a message
    poll = select.poll()
    poll.register(peer, select.POLLIN)
    while True:
        now = time.monotonic()
        wait = min((max(0.0, deadline - now) for deadline in living.values()), default=patience)
        ready = {fd for fd, _ in poll.poll(None if wait == math.inf else wait * 1000)}
        if not ready and not living:
            peer.shutdown(socket.SHUT_RD)  # what was sent before is still there to be read
        if peer.fileno() in ready or not (ready or living):
            message, fds, _, _ = socket.recv_fds(peer, _MESSAGE_BYTES, _MOST_DESCRIPTORS)
            if not message:
                return
            if fds:  # or else this process has too many open, and the requester sees the end of its socket
                child = begin(message, fds)  # before others are closed, whose numbers are in `ready`
                living[child] = time.monotonic() + child.seconds
                poll.register(child.pidfd, select.POLLIN)
                poll.register(child.requester, 0)  # only for its hang-up
            patience = idle
        for child, deadline in list(living.items()):
            late = time.monotonic() > deadline
            if late or not ready.isdisjoint((child.pidfd, child.requester.fileno())):
                poll.unregister(child.pidfd)
                poll.unregister(child.requester)
                del living[child]
                ended = _end(child.pidfd)
                with child.requester:
                    if finish is not None:
                        finish(child, ended, late)


def _end(pidfd: int) -> os.waitid_result | None:
    with suppress(ProcessLookupError):
        signal.pidfd_send_signal(pidfd, signal.SIGKILL)  # it has ended, or isn't needed any more
    ended = os.waitid(os.P_PIDFD, pidfd, os.WEXITED)
    os.close(pidfd)
    return ended


def detach(umask: int) -> None:
    """Go on as an orphan, which no process has to reap. It stays when a terminal closes, and may open many files."""
    if os.fork():
        os._exit(0)
    os.umask(umask)
    os.chdir("/")
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGPIPE):
        signal.signal(number, signal.SIG_IGN)
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
