"""Programs of a version from before the daemon, which wrote to the state directory themselves."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from paddock.errors import NotConfigured
from paddock.keeper import layout

_FIELD_PID = 4  # "1: FLOCK  ADVISORY  WRITE 4711 fe:00:1234 0 EOF", proc_locks(5)


def refuse_older_programs(state_dir: Path) -> None:
    """Raise NotConfigured if a program of an older paddock still works in `state_dir`.

    The caller has the daemon's lock and no segment of the audit log yet. Such a program locks a segment as long as it
    lives. Of today's processes only the gateway does so beside the daemon.
    """
    state_dir = state_dir.resolve()
    for pid in _lockers():
        locked = set(_locked(pid))
        if state_dir / layout.GATEWAY_LOCK in locked:
            continue
        if any(path.parent == state_dir / layout.AUDIT and path.suffix == ".jsonl" for path in locked):
            raise NotConfigured(
                f"a program of an older paddock (pid {pid}) still works in {state_dir}",
                hint=f"let it finish, or end it: kill {pid}",
            )


def _lockers() -> list[int]:
    """Return the processes that took a lock with `flock`. A dead one is named as long as a child has its descriptor."""
    try:
        lines = Path("/proc/locks").read_text().splitlines()
    except OSError:  # gVisor has none, and some containers hide it: there such a program isn't found
        return []
    fields = map(str.split, lines)
    # A request that waits has "->" before its kind.
    return sorted({int(line[_FIELD_PID]) for line in fields if line[1] == "FLOCK"})


def _locked(pid: int) -> Iterator[Path]:
    """Yield the files that `pid` has locked; none of a process that is dead, dying, or another user's.

    By path, because /proc/locks names other devices and inodes than stat(2) does on btrfs and overlayfs.
    """
    try:
        descriptors = os.listdir(f"/proc/{pid}/fd")
    except OSError:
        return
    for descriptor in descriptors:
        try:
            path = Path(os.readlink(f"/proc/{pid}/fd/{descriptor}"))
            if "FLOCK" in Path(f"/proc/{pid}/fdinfo/{descriptor}").read_text():
                yield path
        except OSError:
            continue  # closed meanwhile
