"""Copies of all the trees that a sandbox writes: its own, and its workspace. All of them or none."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import NamedTuple

from paddock.errors import AlreadyExists, PaddockError
from paddock.storage._base import Pool

from ._workspace_tree import WorkspaceTree


class Copy(NamedTuple):
    source: str
    name: str
    limit_bytes: int | None = None


def plan(
    pool: Pool,
    source: str,
    name: str,
    limit_bytes: int | None,
    of: WorkspaceTree | None = None,
    workspace: WorkspaceTree | None = None,
) -> tuple[Copy, ...]:
    """Of the tree `source` and the workspace `of`, as `name` and `workspace`. A workspace keeps its own ceiling."""
    own = Copy(source, name, limit_bytes)
    if of is None or workspace is None:
        return (own,)
    return own, Copy(of.tree, workspace.tree, pool.usage(of.tree).limit_bytes)


def make(pool: Pool, copies: Sequence[Copy], *, anew: bool = False) -> None:
    """`anew`: what has such a name is what a killed service has left, and goes. NotFound, AlreadyExists,
    ResourceExhausted: then none of them is there."""
    made: list[str] = []
    try:
        for copy in copies:
            _make(pool, copy, anew)
            made.append(copy.name)
    except BaseException:
        discard(pool, made)
        raise


def discard(pool: Pool, names: Sequence[str]) -> None:
    """What will not go, a sweep finds."""
    for name in names:
        with suppress(PaddockError):
            pool.delete(name)


def _make(pool: Pool, copy: Copy, anew: bool) -> None:
    try:
        pool.snapshot(copy.source, copy.name, limit_bytes=copy.limit_bytes)
    except AlreadyExists:
        if not anew:
            raise
        pool.delete(copy.name)
        pool.snapshot(copy.source, copy.name, limit_bytes=copy.limit_bytes)
