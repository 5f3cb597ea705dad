"""What nobody needs goes; while the pool is too full, what can be had again goes too. Nothing that lives is touched."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec

from paddock.errors import NotFound, PaddockError
from paddock.model import CollectGarbage, GarbageItem, GarbageReport, PoolSpace, replace
from paddock.storage._base import Pool
from paddock.storage._config import Watermarks

from ._gate import Entry
from ._handlers import handles


class Candidate(msgspec.Struct, frozen=True, kw_only=True):
    """Something that could go. `item.kept_because` says why it does not, whatever happens."""

    item: GarbageItem
    only_when_full: bool = False
    """It can be had again, at a price: it goes only while the pool is too full."""


class Collector(Protocol):
    """One kind of what could go. Collectors are asked in the order in which things are to go."""

    async def candidates(self) -> Sequence[Candidate]: ...
    async def take(self, item: GarbageItem) -> str | None:
        """Deletes it, unless somebody needs it by now: then, why it was kept."""
        ...


class Garbage:
    def __init__(
        self, *, pool: Callable[[], Pool], sweepers: Sequence[Collector], collectors: Sequence[Collector]
    ) -> None:
        """`sweepers` find what is gone anyway, each time that somebody sweeps; `collectors` are asked after them."""
        self._alone, self._pool = asyncio.Lock(), pool
        """Two that collect at once would take twice as much as is to go."""
        self._sweepers, self._collectors = tuple(sweepers), tuple(collectors)

    @handles(CollectGarbage)
    async def perform(self, action: CollectGarbage, entry: Entry) -> GarbageReport:
        report = await self.collect(dry_run=action.dry_run)
        gone = [item.what for item in report.items if item.kept_because is None]
        entry.done({"dry_run": report.dry_run, "number": len(gone), "gone": gone[:100]})
        return report

    async def collect(self, *, dry_run: bool) -> GarbageReport:
        if dry_run:
            return await self._collect((*self._sweepers, *self._collectors), dry_run=True)
        async with self._alone:
            report = await self._collect((*self._sweepers, *self._collectors), dry_run=False)
            pool = self._pool()
            await asyncio.to_thread(pool.trim)
            return replace(report, after=await asyncio.to_thread(pool.space))

    async def sweep(self) -> None:
        """What costs nothing to find; all of it, when the pool has become too full. It grows first, if it can."""
        pool = self._pool()
        await asyncio.to_thread(pool.fit)
        async with self._alone:
            full = pool.marks.reached(await asyncio.to_thread(pool.space))
            await self._collect((*self._sweepers, *(self._collectors if full else ())), dry_run=False)

    async def _collect(self, collectors: Sequence[Collector], *, dry_run: bool) -> GarbageReport:
        pool = self._pool()
        before = await asyncio.to_thread(pool.space)
        room = _Room(before, pool.marks)
        items: list[GarbageItem] = []
        for collector in collectors:
            for candidate in await collector.candidates():
                item = candidate.item
                if item.kept_because is None and candidate.only_when_full and not room.wanted:
                    item = _kept(item, room.words())
                if item.kept_because is None:
                    item = item if dry_run else await _take(collector, item)
                if item.kept_because is None:
                    room.gain(item.bytes or 0)
                items.append(item)
        return GarbageReport(items=tuple(items), dry_run=dry_run, before=before, after=room.space)


class _Room:
    """How full the pool is, as deleted things go. By count: the file system gives their room back by and by."""

    def __init__(self, space: PoolSpace, marks: Watermarks) -> None:
        self.space, self._marks = space, marks
        self._full = marks.reached(space)

    @property
    def wanted(self) -> bool:
        return self._full and not self._marks.left(self.space)

    def gain(self, size: int) -> None:
        size = min(size, self.space.used_bytes)
        self.space = replace(
            self.space,
            used_bytes=self.space.used_bytes - size,
            available_bytes=self.space.available_bytes + size,
        )

    def words(self) -> str:
        return f"the pool is {self.space.fill:.0%} full, and this goes from {self._marks.high:.0%} on"


async def measured(pool: Pool, name: str) -> int | None:
    """Return the bytes of a tree. None: it was deleted meanwhile."""
    try:
        return await asyncio.to_thread(pool.measure, name)
    except NotFound:
        return None


async def _take(collector: Collector, item: GarbageItem) -> GarbageItem:
    """One that will not go keeps no other."""
    try:
        kept = await collector.take(item)
    except (PaddockError, OSError) as error:
        kept = str(error)
    return item if kept is None else _kept(item, kept)


def _kept(item: GarbageItem, why: str) -> GarbageItem:
    return replace(item, kept_because=why)
