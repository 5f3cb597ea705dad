"""Describe what garbage collection may delete."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeAlias

import msgspec

from paddock.daemon.tasks import in_thread
from paddock.errors import NotFoundError
from paddock.storage.pool.base import Pool

Take: TypeAlias = Callable[[str], Awaitable[str | None]]


class Candidate(msgspec.Struct, frozen=True):
    """Something that garbage collection may delete."""

    what: str
    kind: str
    why: str
    size: int | None
    take: Take | None
    """Delete what has that name, or return why it was kept: a row needs it by now. None: it is never deleted."""
    kept: str | None = None
    """Why it isn't deleted, as far as known before."""
    only_when_full: bool = False
    """It can be made again, at a cost: deleted only while the pool is too full."""


Collector: TypeAlias = Callable[[], Awaitable[Sequence[Candidate]]]
"""Return the candidates of one kind, in the order of deletion."""


async def measured(pool: Pool, name: str) -> int | None:
    """Return the bytes of a tree. None: it was deleted meanwhile."""
    try:
        return await asyncio.to_thread(pool.measure, name)
    except NotFoundError:
        return None


async def discarded(discard: Callable[[str], bool], name: str, kept: str | None = None) -> str | None:
    """Delete what other trees need, unless it is `kept`; return why it stays, if it does.

    A sandbox may use it since the candidates were listed.
    """
    if kept is not None or await in_thread(discard, name):
        return kept
    return "it is in use, or being built"
