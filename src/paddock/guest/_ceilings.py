"""Which ceiling struck a command that failed, by what the kernel of its virtual machine counts, for all to read.

Root in there can have it say anything. It is a hint for whoever reads the outcome, and grants nothing.
"""

from __future__ import annotations

import os

GROUP = "/sys/fs/cgroup/sandbox"
_COUNTS = (("memory", "memory.events", b"oom_kill"), ("processes", "pids.events", b"max"))
_DISK_SLACK_BYTES = 1 << 20


class Ceilings:
    """`group` is the control group of all that the sandbox runs, `root` its root directory."""

    def __init__(self, group: str = GROUP, root: str = "/") -> None:
        self._group, self._root = group, root

    def struck(self, before: dict[str, int]) -> str | None:
        """Name what struck since `counts` said `before`. Commands that fail at the same time are told the same."""
        for name, count in self.counts().items():
            if count > before.get(name, 0):
                return name
        return self._full()

    def counts(self) -> dict[str, int]:
        """Memory first: it explains what a fork that failed only accompanied."""
        return {name: _count(f"{self._group}/{file}", key) for name, file, key in _COUNTS}

    def _full(self) -> str | None:
        try:
            now = os.statvfs(self._root)
        except OSError:
            return None
        if now.f_bavail * now.f_frsize < _DISK_SLACK_BYTES:
            return "disk"
        return "inodes" if now.f_favail == 0 else None


def _count(path: str, key: bytes) -> int:
    try:
        with open(path, "rb") as file:
            rows = [line.split() for line in file.read(4096).splitlines()]
        return next(int(row[1]) for row in rows if len(row) == 2 and row[0] == key)
    except (OSError, ValueError, StopIteration):
        return 0  # this kernel does not tell
