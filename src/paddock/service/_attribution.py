"""Which ceiling struck, when a command did not end well."""

from __future__ import annotations

import signal
from collections.abc import Mapping

from paddock.errors import PaddockError
from paddock.model import ExitStatus, Limit, Usage

from ._live import Held, Live

# In this order: a memory kill explains what a fork that failed only accompanied.
_COUNTED = (Limit.MEMORY, Limit.PROCESSES, Limit.INODES, Limit.DISK)
_DISK_SLACK_BYTES = 1 << 20
# The kernel counts none of these: it tells only the program. (The quota may be that of a workspace.)
_WORDS = (
    (b"Too many open files", Limit.OPEN_FILES),
    (b"File too large", Limit.DISK),
    (b"Disk quota exceeded", Limit.DISK),
)


async def counted(held: Held) -> Mapping[Limit, int]:
    """Count what has struck until now, for a command that is about to start. SandboxDied."""
    strikes = held.instance.strikes()
    return (await held.instance.usage()).strikes if strikes is None else strikes


async def struck(
    live: Live, held: Held, status: ExitStatus, before: Mapping[Limit, int], error_text: bytes
) -> Limit | None:
    """Ask the kernel's counters, but only about a command that failed: exit 0 costs nothing.

    `before` is what they said when it started, so an earlier command's strike is never put down to it. Commands that
    run at the same time share what strikes meanwhile: no counter says whose it was.
    """
    if status.limit is not None or status.code == 0:
        return status.limit
    if status.exit_code == 128 + signal.SIGXFSZ:  # a file met RLIMIT_FSIZE, the ceiling where there is no quota
        return Limit.DISK
    try:
        usage = await live.with_disk(held, await held.instance.usage())
        for limit in _COUNTED:
            if usage.strikes.get(limit, 0) > before.get(limit, 0):
                return limit
        if _is_full(held, usage) and _is_full(held, await live.settled_disk(held)):
            return Limit.DISK
    except (PaddockError, OSError):
        return None
    return next((limit for words, limit in _WORDS if words in error_text), None)


def _is_full(held: Held, usage: Usage) -> bool:
    return usage.disk_bytes is not None and usage.disk_bytes >= (held.limits.disk_mib << 20) - _DISK_SLACK_BYTES
