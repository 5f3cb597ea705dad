"""Copies of all the trees that a sandbox writes: its own, and its workspace."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from paddock.daemon.store.trees import WorkspaceTree
from paddock.daemon.tasks import in_thread
from paddock.errors import AlreadyExistsError, logged
from paddock.storage.pool.base import Pool
from paddock.storage.pool.removal import leave_out

MUCH_BYTES = 32 << 20  # what a slow disk writes in some tens of milliseconds


class Copy(NamedTuple):
    source: str
    name: str
    limit_bytes: int | None = None
    at_rest: bool = False
    """No process writes it: it is only read and copied."""
    ours: bool = False
    without: str | None = None
    """An entry of its root that it does not have."""


def plan(
    pool: Pool,
    source: str,
    name: str,
    limit_bytes: int | None,
    of: WorkspaceTree | None = None,
    workspace: WorkspaceTree | None = None,
    *,
    at_rest: bool = False,
    without: str | None = None,
) -> tuple[Copy, ...]:
    """Of the tree `source` and the workspace `of`, as `name` and `workspace`. A workspace keeps its own limit."""
    own = Copy(source, name, limit_bytes, at_rest, without=without)
    if of is None or workspace is None:
        return (own,)
    usage = pool.usage(of.tree)
    return own, Copy(of.tree, workspace.tree, None if usage is None else usage.limit_bytes, at_rest)


def much_is_dirty() -> bool:
    """Of the whole machine: reading that takes some microseconds, and one sandbox has no more than all."""
    with open("/proc/meminfo", "rb") as file:
        words = file.read().split()
    return int(words[words.index(b"Dirty:") + 1]) << 10 > MUCH_BYTES


def flush(pool: Pool, copies: Sequence[Copy]) -> None:
    for copy in copies:
        pool.flush(copy.source)


def make(pool: Pool, copies: Sequence[Copy], *, anew: bool = False) -> None:
    """Make copies in their order. `anew`: delete what has such a name first; a killed daemon left it.

    Raises NotFoundError, AlreadyExistsError, ResourceExhaustedError: the caller discards the copies made before.
    """
    for copy in copies:
        try:
            _make(pool, copy)
        except AlreadyExistsError:
            if not anew:
                raise
            pool.delete(copy.name)
            _make(pool, copy)


def _make(pool: Pool, copy: Copy) -> None:
    pool.snapshot(copy.source, copy.name, limit_bytes=copy.limit_bytes, at_rest=copy.at_rest, ours=copy.ours)
    if copy.without is not None:
        leave_out(pool, copy.name, copy.without)


async def discard(pool: Pool, names: Sequence[str]) -> None:
    """Delete the trees. A later sweep deletes what fails here."""

    def delete() -> None:
        for name in names:
            with logged("delete the tree", name):
                pool.delete(name)

    await in_thread(delete)
