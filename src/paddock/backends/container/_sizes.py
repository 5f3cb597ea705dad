"""What a container is told of its own size, beside what its engine tells it: files over /proc and /sys."""

from __future__ import annotations

from contextlib import suppress
from os import sched_setaffinity
from pathlib import Path

from paddock.linux import sizes
from paddock.model import Limits

from ._records import TOLD

_MIB = 1 << 20


class Size:
    """That of one container: its files lie in the directory of its record."""

    def __init__(self, place: Path, limits: Limits, processors: sizes.Processors) -> None:
        self._cpus, self._all_of_them = processors.choose(limits.cpus)
        self._place = place / TOLD
        self._files = {
            "/proc/meminfo": sizes.meminfo(limits.memory_mib * _MIB, limits.swap_mib * _MIB),
            "/proc/stat": sizes.stat(self._cpus),
            "/proc/loadavg": sizes.LOADAVG,
        }
        if not self._all_of_them:
            self._files |= {
                "/proc/cpuinfo": sizes.cpuinfo(self._cpus),
                "/sys/devices/system/cpu/online": sizes.listed(self._cpus),
            }

    def write(self) -> list[tuple[Path, str]]:
        """Return each file, and what it lies over."""
        self._place.mkdir(mode=0o755)
        made = [(self._place / target.rpartition("/")[2], target) for target in self._files]
        for file, target in made:
            file.write_text(self._files[target])
            file.chmod(0o644)
        return made

    def pin(self, pid: int) -> None:
        """Have pid 1 run there, and so all that it starts. Another user's engine may not let us: the quota holds."""
        if not self._all_of_them:
            with suppress(PermissionError):
                sched_setaffinity(pid, self._cpus)
