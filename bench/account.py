"""Who has used how much processor time: the caller, its children, the keeper, what is inside the sandboxes.

Not counted: threads of the kernel that work for nobody in particular (loop device, removal of groups and trees).
"""

from __future__ import annotations

import hashlib
import os
import resource
import socket
import struct
import time
from contextlib import suppress
from pathlib import Path

_TICK = os.sysconf("SC_CLK_TCK")


class Account:
    """Of the calling process and, with `state`, of the keeper of that state directory and its sandboxes."""

    def __init__(self, state: Path | None = None) -> None:
        self._state = state
        self._keeper: int | None = None
        self._group = None if state is None else _group_of(state)

    @property
    def exact(self) -> bool:
        """False where no control group counts what runs inside: then only what the keeper has waited for is known."""
        return self._state is None or (self._group is not None and self._group.exists())

    def read(self) -> dict[str, float]:
        """Seconds since some beginning: subtract two readings."""
        children = resource.getrusage(resource.RUSAGE_CHILDREN)
        seconds = {"caller": time.process_time(), "children": children.ru_utime + children.ru_stime}
        if self._state is not None:
            if self._keeper is None or not os.path.exists(f"/proc/{self._keeper}"):
                self._keeper = keeper_pid(self._state)
            seconds["keeper"], waited_for = _of_process(self._keeper)
            inside = _of_group(self._group)
            seconds["inside"] = waited_for if inside is None else inside
        return seconds


def keeper_pid(state: Path) -> int | None:
    """Whoever listens at the keeper's door; None if nobody does."""
    with suppress(OSError), socket.socket(socket.AF_UNIX) as door:
        door.connect(str(state / "keeper.sock"))
        return struct.unpack("3i", door.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0]
    return None


def _of_process(pid: int | None) -> tuple[float, float]:
    """Of the process itself, and of the children that it has waited for."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return 0.0, 0.0
    own, waited_for = ((int(fields[n]) + int(fields[n + 1])) / _TICK for n in (11, 13))
    with suppress(OSError):  # nanoseconds instead of ticks; of one thread, and the keeper has but one
        own = int(Path(f"/proc/{pid}/schedstat").read_bytes().split()[0]) * 1e-9
    return own, waited_for


def _group_of(state: Path) -> Path | None:
    """The file that counts for all groups that the keeper of `state` makes, those that are gone included."""
    from paddock.linux import _cgroup_layout  # a peer's environment has no paddock, and needs none

    name = f"paddock_{hashlib.sha256(os.fsencode(state)).hexdigest()[:12]}"
    for hierarchy in sorted(_cgroup_layout.detect(), key=lambda h: -h.version):
        if hierarchy.version == 2:
            return Path(hierarchy.own, name, "cpu.stat")
        if "cpuacct" in hierarchy.controllers:
            return Path(hierarchy.own, name, "cpuacct.usage")
    return None


def _of_group(file: Path | None) -> float | None:
    try:
        words = file.read_bytes().split() if file is not None else []
    except OSError:
        return None
    if len(words) == 1:
        return int(words[0]) * 1e-9
    return int(words[words.index(b"usage_usec") + 1]) * 1e-6 if words else None
