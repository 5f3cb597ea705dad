"""Describe what garbage collection may delete."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeAlias

import msgspec

from paddock.daemon.tasks import in_thread
from paddock.errors import NotFoundError
from paddock.storage.pool.base import Pool

Take: TypeAlias = Callable[[], Awaitable[str | None]]


class Candidate(msgspec.Struct, frozen=True):
    """Something that could go."""

    what: str
    kind: str
    why: str
    size: int | None
    take: Take
    """Deletes it, unless somebody needs it by now: then, why it was kept."""
    kept: str | None = None
    """Why it does not go, whatever happens."""
    only_when_full: bool = False
    """It can be had again, at a price: it goes only while the pool is too full."""


Collector: TypeAlias = Callable[[], Awaitable[Sequence[Candidate]]]
"""Finds one kind of what could go, in the order in which it is to go."""


async def measured(pool: Pool, name: str) -> int | None:
    """Return the bytes of a tree. None: it was deleted meanwhile."""
    try:
        return await asyncio.to_thread(pool.measure, name)
    except NotFoundError:
        return None


async def discarded(discard: Callable[[str], bool], name: str, kept: str | None) -> str | None:
    """Delete what lies below other trees, unless it is `kept`; return why it stays, if it does.

    Who has taken it into use since it was looked at may have ended, and his sandbox lives on: `kept` is asked again.
    """
    if kept is not None or await in_thread(discard, name):
        return kept
    return "it is in use, or being built"
