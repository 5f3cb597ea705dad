"""Count processor time: of the caller, its children, the daemon, the supervisor, and what is inside the sandboxes.

Imports nothing of paddock: that is the revision which is measured.
Threads of the kernel that work for nobody in particular (loop device, removal of groups and trees) are counted apart:
`kernel_seconds`.
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
_KTHREADD = 2


class Account:
    """Count the calling process and, with `state`, that directory's daemon, its supervisor and its sandboxes."""

    def __init__(self, state: Path | None = None) -> None:
        self._state = state
        self._daemon: int | None = None
        self._supervisor: int | None = None
        self._group: Path | None = None

    @property
    def exact(self) -> bool:
        """False where no control group counts what runs inside: then only what the supervisor has waited for is
        known."""
        return self._state is None or self._group is not None

    def read(self) -> dict[str, float]:
        """Seconds since some beginning: subtract two readings."""
        children = resource.getrusage(resource.RUSAGE_CHILDREN)
        seconds = {"caller": time.process_time(), "children": children.ru_utime + children.ru_stime}
        if self._state is not None:
            if self._daemon is None or not os.path.exists(f"/proc/{self._daemon}"):
                self._daemon = daemon_pid(self._state)
            seconds["daemon"] = sum(_of_process(self._daemon)) if self._daemon is not None else 0.0
            if self._supervisor is None or not os.path.exists(f"/proc/{self._supervisor}"):
                self._supervisor = supervisor_pid(self._state)
                self._group = _group_of(self._state, self._supervisor)
            seconds["supervisor"], waited_for = _of_supervisor(self._supervisor)
            inside = _of_group(self._group)
            seconds["inside"] = waited_for if inside is None else inside
        return seconds


def kernel_seconds() -> float:
    """Return what all living threads of the kernel have used, for anything on this machine.

    One that ends between two readings makes their difference too small.
    """
    found = 0
    for thread in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if int((thread / "stat").read_bytes().rpartition(b")")[2].split()[1]) == _KTHREADD:
                found += int((thread / "schedstat").read_bytes().split()[0])
    return found * 1e-9


def daemon_pid(state: Path) -> int | None:
    return _listener(state / "daemon.sock")


def supervisor_pid(state: Path) -> int | None:
    """Whoever listens at the supervisor's door; None if nobody does."""
    return _listener(state / "supervisor.sock")


def gateway_pid(state: Path) -> int | None:
    """None if there is none."""
    return _listener(state / "gateway.sock")


def _listener(path: Path) -> int | None:
    with suppress(OSError), socket.socket(socket.AF_UNIX) as door:
        door.connect(str(path))
        return struct.unpack("3i", door.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0]
    return None


def _of_supervisor(pid: int | None) -> tuple[float, float]:
    """Of the supervisor and of its own helpers, and of the children that it has waited for.

    A helper is a child in the supervisor's own control group: sandboxes have groups of their own.
    """
    try:
        place = Path(f"/proc/{pid}/cgroup").read_bytes()
        children = Path(f"/proc/{pid}/task/{pid}/children").read_bytes().split()
        own, waited_for = _of_process(int(pid or 0))
    except OSError:
        return 0.0, 0.0
    for child in map(int, children):
        with suppress(OSError):
            if Path(f"/proc/{child}/cgroup").read_bytes() == place:
                own += _of_process(child)[0]
    return own, waited_for


def _of_process(pid: int) -> tuple[float, float]:
    """Return the seconds of a process, and of the children that it has waited for."""
    fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    own, waited_for = ((int(fields[n]) + int(fields[n + 1])) / _TICK for n in (11, 13))
    with suppress(OSError):  # nanoseconds instead of ticks; the number is clock_getcpuclockid(3)'s, for all threads
        own = time.clock_gettime(~pid << 3 | 2)
    return own, waited_for


def _group_of(state: Path, supervisor: int | None) -> Path | None:
    """The file that counts for all groups that the supervisor of `state` makes, those that are gone included.

    The supervisor chooses where its groups are and holds their directory open: it is looked at through that descriptor.
    """
    name = f"paddock_{hashlib.sha256(os.fsencode(state)).hexdigest()[:12]}"
    for fd in Path(f"/proc/{supervisor}/fd").glob("*"):
        with suppress(OSError):
            if os.path.basename(os.readlink(fd)) != name:
                continue
            for file in (fd / "cpu.stat", fd / "cpuacct.usage"):  # of version 2, of version 1
                if _of_group(file) is not None:
                    return file
    return None


def _of_group(file: Path | None) -> float | None:
    """None if there is no such file, or it counts something else (that of version 1's `cpu` is about throttling)."""
    try:
        words = file.read_bytes().split() if file is not None else []
        return int(words[0]) * 1e-9 if len(words) == 1 else int(words[words.index(b"usage_usec") + 1]) * 1e-6
    except (OSError, ValueError):
        return None
