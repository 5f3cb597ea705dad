"""From what the kernel says of a process to what a caller is told."""

from __future__ import annotations

from paddock.linux import processes
from paddock.model import Process


def process(one: processes.Process, *, pid: int, parent: int, uid: int, boot: float) -> Process:
    """`boot` is when the machine was started, in seconds since the epoch."""
    return Process(
        pid=pid,
        parent=parent,
        uid=uid,
        name=_text(one.name),
        argv=tuple(map(_text, one.argv)),
        state=one.state,
        threads=one.threads,
        started_at=boot + one.started,
        cpu_seconds=one.cpu_seconds,
        memory_bytes=one.memory_bytes,
    )


def _text(data: bytes) -> str:
    return data.decode("utf-8", "backslashreplace")
