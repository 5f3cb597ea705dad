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


async def struck(
    live: Live, held: Held, status: ExitStatus, before: Mapping[Limit, int], error_text: bytes
) -> Limit | None:
    """Asks the kernel's counters, but only about a command that failed: exit 0 costs nothing.

    `before` is what the counters said when they were last asked. So what struck a command that then exited 0 may be
    told of the next one that fails; several failing at once are all told the same.
    """
    if status.limit is not None or status.code == 0:
        return status.limit
    if status.exit_code == 128 + signal.SIGXFSZ:  # a file met RLIMIT_FSIZE, the ceiling where there is no quota
        return Limit.DISK
    try:
        usage = live.with_disk(held, await held.instance.usage())
    except (PaddockError, OSError):
        return None
    held.strikes = usage.strikes
    return attribute(usage, before, held.limits.disk_mib << 20, error_text)


def attribute(usage: Usage, before: Mapping[Limit, int], disk_bytes: int, error_text: bytes) -> Limit | None:
    for limit in _COUNTED:
        if usage.strikes.get(limit, 0) > before.get(limit, 0):
            return limit
    if usage.disk_bytes is not None and usage.disk_bytes >= disk_bytes - _DISK_SLACK_BYTES:
        return Limit.DISK
    return next((limit for words, limit in _WORDS if words in error_text), None)
