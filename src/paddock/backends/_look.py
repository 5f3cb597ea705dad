"""List a sandbox's processes for a caller, and check their namespaces, as the kernel shows them."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from paddock.backends._checks import posture
from paddock.linux import proc, processes
from paddock.linux.namespaces import IdMap, read_uid_map
from paddock.model import Check, Process

NOBODY = 65534


def family(pid: int, lives: Callable[[], bool]) -> tuple[processes.Process, ...]:
    """Return that process and all below it. Empty if it has ended: another process may have its number by now."""
    if not lives():
        return ()
    found = processes.below(pid)
    return found if found and found[0].pid == pid and lives() else ()


def ids(pid: int) -> list[IdMap]:
    """Return the id map of its user namespace, as seen from this one. Empty if it has ended."""
    try:
        return read_uid_map(pid)
    except OSError:
        return []


def table(found: tuple[processes.Process, ...], ids: Sequence[IdMap]) -> tuple[Process, ...]:
    """Return the processes with pids and uids as seen inside; `ids` is the map of their user namespace."""
    inner = {one.pid: one.inner_pid for one in found}

    def inner_uid(uid: int) -> int:
        return next((one.inside + uid - one.outside for one in ids if 0 <= uid - one.outside < one.length), NOBODY)

    return tuple(
        process(one, pid=one.inner_pid, parent=inner.get(one.parent, 0), uid=inner_uid(one.uid)) for one in found
    )


def process(one: processes.Process, *, pid: int, parent: int, uid: int) -> Process:
    return Process(
        pid=pid,
        parent=parent,
        uid=uid,
        name=_text(one.name),
        argv=tuple(map(_text, one.argv)),
        state=one.state,
        threads=one.threads,
        started_at=time.time() - proc.boottime() + one.started,
        cpu_seconds=one.cpu_seconds,
        memory_bytes=one.memory_bytes,
    )


def shared(pid: int, names: Sequence[str]) -> list[str] | None:
    """Which of these namespaces a process has in common with this one. None: an ordinary user is not shown them."""
    own = proc.namespaces()
    try:
        theirs = proc.namespaces(pid)
    except PermissionError:
        return None
    return [name for name in names if theirs.get(name) == own.get(name)]


def namespaces(pid: int, names: Sequence[str]) -> Check:
    """One line about them."""
    found = shared(pid, names)
    if found is None:
        return posture("namespaces", None, "an ordinary user is not shown them; they were made when it was")
    return posture("namespaces", f"shares {', '.join(found)}" if found else None, f"its own: {' '.join(names)}")


def _text(data: bytes) -> str:
    return data.decode("utf-8", "backslashreplace")
