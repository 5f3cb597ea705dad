"""A process by descriptor, which never comes to mean another one (pidfd_open(2), Linux 5.3)."""

from __future__ import annotations

import os
import select
import signal

from paddock.linux.syscall import failure


def open(pid: int) -> int:
    """Return a descriptor of `pid`, close-on-exec. ProcessLookupError if there is none (or, before Linux 6.15, a
    thread)."""
    try:
        return os.pidfd_open(pid)
    except OSError as error:
        raise failure(error.errno or 0, ("pidfd_open", pid)) from None


def send_signal(fd: int, number: int) -> None:
    """Send a signal (pidfd_send_signal(2)). Raises ProcessLookupError after the process's reaping."""
    try:
        signal.pidfd_send_signal(fd, number)
    except OSError as error:
        raise failure(error.errno or 0, ("pidfd_send_signal", number)) from None


def wait(fd: int, timeout_seconds: float | None = None) -> bool:
    """Tell whether the process ends (or is a zombie) within `timeout_seconds`. It reaps nothing."""
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return bool(poll.poll(None if timeout_seconds is None else timeout_seconds * 1000))
