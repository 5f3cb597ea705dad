"""Stop the TTL of a sandbox while it is paused.

The row of a paused one says how much is left of its TTL. Its deadline is then that of its retention. These functions
record nothing: `Store.set_deadline` does.
"""

from __future__ import annotations

from paddock.backends.base import Paused
from paddock.daemon.clock import Clock, boot_id
from paddock.daemon.store.database import Row
from paddock.model import replace


def running(row: Row, clock: Clock, deadline: float | None = None) -> Row:
    """Return the row of one that runs until `deadline`, in seconds of CLOCK_BOOTTIME; by default with what is left."""
    left = row.sandbox.left_seconds
    if deadline is None and left is None:
        if row.boot_id == boot_id():
            return row
        left = max(0.0, row.sandbox.expires_at - clock.wall())  # paused on disk by a version whose TTLs went on
    if deadline is None:
        assert left is not None
        deadline = clock.boottime() + left
    return _until(row, clock, deadline, None)


def paused(row: Row, clock: Clock, known: Paused) -> Row:
    """Return the row of one of which its backend says that it stands still."""
    if known.left_seconds is None:
        return row
    return _until(row, clock, known.kept_until, known.left_seconds)


def hibernated(row: Row, clock: Clock, retention_seconds: float) -> Row:
    """Return the row of one that stands still from now on, if it did not before."""
    if row.sandbox.left_seconds is not None:
        return row
    now = clock.boottime()
    left = row.deadline - now if row.boot_id == boot_id() else row.sandbox.expires_at - clock.wall()
    return _until(row, clock, now + retention_seconds, max(0.0, left))


def _until(row: Row, clock: Clock, deadline: float, left: float | None) -> Row:
    expires_at = clock.wall() + deadline - clock.boottime()
    kept_until = None if left is None else expires_at
    sandbox = replace(row.sandbox, expires_at=expires_at, kept_until=kept_until, left_seconds=left)
    return replace(row, sandbox=sandbox, deadline=deadline, boot_id=boot_id())
