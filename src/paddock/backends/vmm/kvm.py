"""The machine's KVM, and its processor, as the levels see them that can use it."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

DEVICE = Path("/dev/kvm")


def closed() -> str | None:
    """Return why this user can't open the device, or None. It may answer, and run nothing."""
    if not DEVICE.is_char_device():
        return f"there is no {DEVICE}"
    if not os.access(DEVICE, os.R_OK | os.W_OK):
        return f"you may not open {DEVICE} (usermod -aG kvm, and a new login)"
    return None


def processor() -> dict[str, str]:
    """Return what the kernel says of the first processor, by field (proc_cpuinfo(5)). Empty, if it can't be read."""
    with suppress(OSError):
        first = Path("/proc/cpuinfo").read_text("ascii", "replace").split("\n\n", 1)[0]
        return {name.strip(): value.strip() for name, _, value in (row.partition(":") for row in first.splitlines())}
    return {}
