"""What nobody needs goes; while the pool is too full, what can be had again goes too. Nothing that lives is touched."""

from __future__ import annotations

import asyncio
import fcntl
import os
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Protocol

import msgspec

from paddock.errors import InvalidState, PaddockError
from paddock.keeper.layout import GARBAGE_LOCK
from paddock.model import GarbageItem, GarbageReport, PoolSpace, replace
from paddock.storage._base import Pool
from paddock.storage._config import Watermarks

_PAUSE_SECONDS = 0.02


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
        self,
        state_dir: Path,
        *,
        pool: Callable[[], Pool],
        sweepers: Sequence[Collector],
        collectors: Sequence[Collector],
        patience_seconds: float = 60.0,
    ) -> None:
        """`sweepers` find what is gone anyway, each time that somebody sweeps; `collectors` are asked after them."""
        self._lock, self._pool = state_dir / GARBAGE_LOCK, pool
        self._patience = patience_seconds
        self._sweepers, self._collectors = tuple(sweepers), tuple(collectors)

    async def collect(self, *, dry_run: bool) -> GarbageReport:
        """Waits for another program that is at it. InvalidState: that takes too long."""
        if dry_run:
            return await self._collect((*self._sweepers, *self._collectors), dry_run=True)
        async with self._alone(self._patience) as alone:
            if not alone:
                raise InvalidState("another program is collecting garbage", hint="wait until it has done so")
            report = await self._collect((*self._sweepers, *self._collectors), dry_run=False)
            pool = self._pool()
            await asyncio.to_thread(pool.trim)
            return replace(report, after=await asyncio.to_thread(pool.space))

    async def sweep(self) -> None:
        """What costs nothing to find; all of it, when the pool has become too full. It grows first, if it can."""
        pool = self._pool()
        await asyncio.to_thread(pool.fit)
        async with self._alone(0.0) as alone:
            if alone:
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

    @asynccontextmanager
    async def _alone(self, patience_seconds: float) -> AsyncGenerator[bool]:
        """Two that collect at once would take twice as much as is to go. A lock of the kernel's: it ends with us."""
        fd = os.open(self._lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            taken = _take_lock(fd)
            with suppress(TimeoutError):
                async with asyncio.timeout(patience_seconds):
                    while not taken:
                        await asyncio.sleep(_PAUSE_SECONDS)
                        taken = _take_lock(fd)
            yield taken
        finally:
            os.close(fd)


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


async def _take(collector: Collector, item: GarbageItem) -> GarbageItem:
    """One that will not go keeps no other."""
    try:
        kept = await collector.take(item)
    except (PaddockError, OSError) as error:
        kept = str(error)
    return item if kept is None else _kept(item, kept)


def _take_lock(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _kept(item: GarbageItem, why: str) -> GarbageItem:
    return replace(item, kept_because=why)
