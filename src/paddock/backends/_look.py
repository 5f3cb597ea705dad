"""From what the kernel says of processes to what a caller is told."""

from __future__ import annotations

import time
from collections.abc import Callable

from paddock.linux import proc, processes
from paddock.model import Check, Process

NOBODY = 65534


def family(pid: int, lives: Callable[[], bool]) -> tuple[processes.Process, ...]:
    """That process and all below it. Empty if it has ended: another process may have its number by now."""
    if not lives():
        return ()
    found = processes.below(pid)
    return found if found and found[0].pid == pid and lives() else ()


def table(found: tuple[processes.Process, ...], uid: Callable[[int], int]) -> tuple[Process, ...]:
    """By their numbers in their own pid namespace; `uid` gives whom one of the host's is inside."""
    inner = {one.pid: one.inner_pid for one in found}
    return tuple(process(one, pid=one.inner_pid, parent=inner.get(one.parent, 0), uid=uid(one.uid)) for one in found)


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


def check(name: str, problem: str | None, detail: str) -> Check:
    """One line about the walls of a sandbox."""
    return Check(area="posture", name=name, status="missing" if problem else "ok", detail=problem or detail)


def _text(data: bytes) -> str:
    return data.decode("utf-8", "backslashreplace")
