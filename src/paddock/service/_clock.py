"""Time and identity of this process, as values that a test can replace."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import msgspec


class Clock(msgspec.Struct, frozen=True):
    """`wall`: seconds since the epoch, for people. `boottime`: CLOCK_BOOTTIME seconds, for deadlines and leases."""

    wall: Callable[[], float] = time.time
    boottime: Callable[[], float] = lambda: time.clock_gettime(time.CLOCK_BOOTTIME)


def boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def start_time(pid: int) -> str | None:
    """Field 22 of proc_pid_stat(5): with the pid and the boot it names a process. None if there is no such process."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return None
    fields = stat[stat.rindex(b")") + 2 :].split()
    return None if fields[0] in (b"Z", b"X") else fields[19].decode()
