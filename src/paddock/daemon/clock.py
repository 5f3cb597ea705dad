"""Time and identity of this process, as values that a test can replace."""

from __future__ import annotations

import time
from collections.abc import Callable

import msgspec

from paddock.linux import proc
from paddock.linux.proc import boot_id as boot_id


class Clock(msgspec.Struct, frozen=True):
    """`wall`: seconds since the epoch, for people. `boottime`: CLOCK_BOOTTIME seconds, for deadlines and leases."""

    wall: Callable[[], float] = time.time
    boottime: Callable[[], float] = lambda: time.clock_gettime(time.CLOCK_BOOTTIME)


def start_time(pid: int) -> str | None:
    """Return the start time of a process. With the pid and the boot it identifies the process. None if there is no such
    process, or it is dead."""
    try:
        fields = proc.stat(pid)
    except OSError:
        return None
    return None if fields[2] in (b"Z", b"X") else fields[21].decode()
