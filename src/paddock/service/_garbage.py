"""What nobody needs goes; while the pool is too full, what can be had again goes too. Nothing that lives is touched.

The collectors here find trees without a row, old templates, outputs, and what is half made.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Protocol

import msgspec

from paddock.errors import NotFound, PaddockError
from paddock.keeper.layout import PACKAGES
from paddock.model import CollectGarbage, GarbageItem, GarbageReport, Level, Noun, PoolSpace, replace
from paddock.storage._base import Pool
from paddock.storage._config import Watermarks
from paddock.storage._memories import Memories
from paddock.storage._trees import WAITING

from ._context import Component, Context
from ._gate import Entry
from ._handlers import handles
from ._needs import Need
from ._remains import Remains
from ._workspace_tree import BESIDE, SPARE


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


_KINDS = (Noun.SANDBOX, Noun.SNAPSHOT, Noun.BASE, Noun.WORKSHOP, Noun.WORKSPACE)
NOUNS = (*(noun.value for noun in _KINDS), BESIDE, SPARE, WAITING)
"""What the names of trees begin with that the store keeps rows of, or that are in use."""


class Unfinished(Component):
    """What killed programs left half made or half deleted."""

    async def candidates(self) -> Sequence[Candidate]:
        why = "a program was killed while it made or deleted a tree"
        return [_candidate(name, "unfinished", why, None) for name in await asyncio.to_thread(self._pool().unfinished)]

    async def take(self, item: GarbageItem) -> str | None:
        pool = self._pool()
        if item.what not in await asyncio.to_thread(pool.unfinished):
            return None
        return (await asyncio.to_thread(pool.sweep)).get(item.what)  # all of them at once


class Orphans(Component):
    """Trees that no row needs, nor this process."""

    async def candidates(self) -> Sequence[Candidate]:
        pool = self._pool()
        names = await asyncio.to_thread(pool.names)  # first the trees, then the rows (_needs.py)
        needed = self._needs.by_tree().keys() | pool.in_use
        lost = [name for name in names if name.startswith(NOUNS) and name not in needed]
        return [
            _candidate(name, "orphan", "nothing that is recorded needs it", await measured(pool, name)) for name in lost
        ]

    async def take(self, item: GarbageItem) -> str | None:
        needed = self._needs.by_tree().get(item.what)
        if needed:
            return needed[0].told
        self._audit.event("tree.orphan", sandbox=item.what, message="nothing that is recorded needs it; deleted")
        await asyncio.to_thread(self._pool().delete, item.what)
        return None


_WALLED = (Level.GVISOR, Level.MICROVM)
_PART = re.compile(r"t[pb]_kit_", re.ASCII)


class OldTemplates(Component):
    """Versions that a newer one has replaced, and what killed builders have begun."""

    async def candidates(self) -> Sequence[Candidate]:
        pool = self._pool()
        names = [name for name in await asyncio.to_thread(pool.names) if self._templates.is_version(name)]
        current = await asyncio.to_thread(self._templates.versions)
        needed = self._needs.by_tree()
        found: list[Candidate] = []
        for name in names:
            if name in current:
                continue
            whole = name.startswith(Noun.TEMPLATE)
            why = "a newer version has replaced it" if whole else "its builder did not come to an end"
            kept = _needed(needed, name) or self._unknown(name)
            found.append(_candidate(name, "template", why, await measured(pool, name), kept))
        return found

    async def take(self, item: GarbageItem) -> str | None:
        # Who has taken it into use since it was looked at may have ended, and his sandbox lives on.
        kept = _needed(self._needs.by_tree(), item.what) or self._unknown(item.what)
        if kept is not None:
            return kept
        if await asyncio.to_thread(self._templates.discard, item.what):
            return None
        return "it is in use, or being built"

    def _unknown(self, name: str) -> str | None:
        """Rows of an older paddock do not say which version they lie over, and none says what its wall is made of."""
        rows = self._store.list()
        silent = [row.id for row in rows if not row.layers]
        if silent:
            return f"{silent[0]} may need it: it was made by an older paddock"
        walled = [row.id for row in rows if row.sandbox.level in _WALLED]
        return f"{walled[0]} may need it: its wall is made of such" if walled and _PART.match(name) else None


class Memory(Component):
    """Of virtual machines, on which no tree leans any more."""

    async def candidates(self) -> Sequence[Candidate]:
        pool = self._pool()
        lost = await asyncio.to_thread(Memories(pool).lost)
        why = "no sandbox and no snapshot needs it"
        return [_candidate(name, "memory", why, await measured(pool, name)) for name in lost]

    async def take(self, item: GarbageItem) -> str | None:
        gone = await asyncio.to_thread(Memories(self._pool()).drop, item.what)
        return None if gone else "a machine needs it by now"


class Outputs(Component):
    """What commands of sandboxes that have ended have printed."""

    def __init__(self, context: Context, remains: Remains) -> None:
        super().__init__(context)
        self._remains = remains

    async def candidates(self) -> Sequence[Candidate]:
        folder = self._remains.outputs
        sizes = await asyncio.to_thread(_folder_sizes, folder)
        living = {row.id for row in self._store.list()}
        why = "its sandbox has ended"
        return [_candidate(name, "output", why, size) for name, size in sizes.items() if name not in living]

    async def take(self, item: GarbageItem) -> str | None:
        await asyncio.to_thread(self._remains.remove_outputs, item.what)
        return None


def _needed(needed: Mapping[str, tuple[Need, ...]], name: str) -> str | None:
    return needed[name][0].told if name in needed else None


def _candidate(what: str, kind: str, why: str, size: int | None, kept: str | None = None) -> Candidate:
    return Candidate(item=GarbageItem(what=what, kind=kind, why=why, bytes=size, kept_because=kept))


def _folder_sizes(folder: Path) -> dict[str, int | None]:
    names = os.listdir(folder) if folder.is_dir() else []
    return {name: _folder_size(f"{folder}/{name}") for name in names if name.startswith(Noun.SANDBOX)}


def _folder_size(path: str) -> int | None:
    try:
        with os.scandir(path) as files:
            return sum(file.stat(follow_symlinks=False).st_blocks * 512 for file in files)
    except OSError:
        return None


class Packages(Component):
    """What the gateway keeps of registries: told, never taken, for the gateway keeps it below a ceiling itself."""

    async def candidates(self) -> Sequence[Candidate]:
        number, size = await asyncio.to_thread(measure, self._state_dir / PACKAGES)
        item = GarbageItem(
            what="package cache",
            kind="packages",
            why=f"{number} files of registries, which would be fetched again",
            bytes=size,
            kept_because="the gateway keeps it below its own ceiling",
        )
        return [Candidate(item=item)] if number else []

    async def take(self, item: GarbageItem) -> str | None:
        return item.kept_because


def measure(directory: Path) -> tuple[int, int]:
    """How many files are in it, and their bytes; none if there is no such directory."""
    sizes: list[int] = []
    with suppress(OSError), os.scandir(directory) as entries:
        for one in entries:
            with suppress(OSError):  # it has just gone
                sizes.append(one.stat().st_size)
    return len(sizes), sum(sizes)
