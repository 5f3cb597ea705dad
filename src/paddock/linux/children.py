"""Processes that this program forks from itself. The caller has one thread."""

from __future__ import annotations

import os
import resource
import signal
from collections.abc import Callable

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
