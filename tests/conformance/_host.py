"""What can be seen from outside: processes by a marker among their arguments, memory of this process."""

from __future__ import annotations

import os
from pathlib import Path


def processes(marker: str) -> list[int]:
    """Living processes of the whole machine that have `marker` in their command line. Zombies have none."""
    needle = marker.encode()
    found: list[int] = []
    for name in os.listdir("/proc"):
        if not name.isdigit() or int(name) == os.getpid():
            continue
        try:
            arguments = Path("/proc", name, "cmdline").read_bytes()
        except OSError:
            continue  # it ended meanwhile
        if needle in arguments:
            found.append(int(name))
    return found


class PeakMemory:
    """How far the resident memory of this process rises above what it is now.

    Source: proc_pid_clear_refs(5): writing 5 resets the peak to the current value.
    """

    def __init__(self) -> None:
        Path("/proc/self/clear_refs").write_text("5")
        self._before = _kilobytes("VmRSS")

    def growth_bytes(self) -> int:
        return (_kilobytes("VmHWM") - self._before) * 1024


def _kilobytes(field: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1])
    raise AssertionError(f"/proc/self/status has no {field}")
