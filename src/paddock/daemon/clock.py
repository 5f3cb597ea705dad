"""Time and identity of this process, as values that a test can replace."""

from __future__ import annotations

import time
from collections.abc import Callable

import msgspec

from paddock.linux.proc import boot_id as boot_id


class Clock(msgspec.Struct, frozen=True):
    """`wall`: seconds since the epoch, for people. `boottime`: CLOCK_BOOTTIME seconds, for deadlines and leases."""

    wall: Callable[[], float] = time.time
    boottime: Callable[[], float] = lambda: time.clock_gettime(time.CLOCK_BOOTTIME)
