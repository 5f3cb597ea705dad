"""What the door itself can find to be garbage: trees without a row, old templates, outputs, what is half made."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from paddock.audit import AuditLog
from paddock.errors import NotFound
from paddock.model import GarbageItem, Level, Noun
from paddock.storage._base import Pool
from paddock.storage._memories import Memories
from paddock.storage._waiting_trees import WAITING, is_abandoned

from ._garbage import Candidate
from ._needs import Need, Needs
from ._providers import Templates
from ._remains import Remains
from ._store import Store


class Unfinished:
    """What killed programs left half made or half deleted."""

    def __init__(self, pool: Callable[[], Pool]) -> None:
        self._pool = pool

    async def candidates(self) -> Sequence[Candidate]:
        why = "a program was killed while it made or deleted a tree"
        return [_candidate(name, "unfinished", why, None) for name in await asyncio.to_thread(self._pool().unfinished)]

    async def take(self, item: GarbageItem) -> str | None:
        pool = self._pool()
        if item.what not in await asyncio.to_thread(pool.unfinished):
            return None
        return (await asyncio.to_thread(pool.sweep)).get(item.what)  # all of them at once


class Orphans:
    """Trees of a noun that we keep rows of, that no row needs."""

    def __init__(self, pool: Callable[[], Pool], needs: Needs, audit: AuditLog, nouns: Sequence[str]) -> None:
        self._pool, self._needs, self._audit, self._nouns = pool, needs, audit, tuple(nouns)

    async def candidates(self) -> Sequence[Candidate]:
        pool = self._pool()
        names = await asyncio.to_thread(pool.names)  # first the trees, then the rows (_needs.py)
        needed = self._needs.by_tree()
        lost = [name for name in names if name.startswith(self._nouns) and name not in needed]
        return [
            _candidate(name, "orphan", "nothing that is recorded needs it", await _size(pool, name)) for name in lost
        ]

    async def take(self, item: GarbageItem) -> str | None:
        needed = self._needs.by_tree().get(item.what)
        if needed:
            return f"{needed[0].by} needs it: {needed[0].why}"
        self._audit.event("tree.orphan", sandbox=item.what, message="nothing that is recorded needs it; deleted")
        await asyncio.to_thread(self._pool().delete, item.what)
        return None


class AbandonedVessels:
    """Trees of what waited to become a sandbox, whose program has died: it ended with that."""

    def __init__(self, pool: Callable[[], Pool]) -> None:
        self._pool = pool

    async def candidates(self) -> Sequence[Candidate]:
        pool = self._pool()
        names = await asyncio.to_thread(_abandoned, pool)
        return [_candidate(name, "waiting", "who made it to wait has ended", await _size(pool, name)) for name in names]

    async def take(self, item: GarbageItem) -> str | None:
        if not await asyncio.to_thread(is_abandoned, self._pool(), item.what):
            return "a program that runs keeps it"
        await asyncio.to_thread(self._pool().delete, item.what)
        return None


def _abandoned(pool: Pool) -> list[str]:
    return [name for name in pool.names() if name.startswith(WAITING) and is_abandoned(pool, name)]


_WALLED = (Level.GVISOR, Level.MICROVM)
_PART = re.compile(r"t[pb]_kit_", re.ASCII)


class OldTemplates:
    """Versions that a newer one has replaced, and what killed builders have begun."""

    def __init__(self, pool: Callable[[], Pool], templates: Templates, needs: Needs, store: Store) -> None:
        self._pool, self._templates, self._needs, self._store = pool, templates, needs, store

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
            found.append(_candidate(name, "template", why, await _size(pool, name), kept))
        return found

    async def take(self, item: GarbageItem) -> str | None:
        # Who has taken it into use since it was looked at may have ended, and his sandbox lives on.
        kept = _needed(self._needs.by_tree(), item.what) or self._unknown(item.what)
        if kept is not None:
            return kept
        if await asyncio.to_thread(self._templates.discard, item.what):
            return None
        return "a program that runs uses it"

    def _unknown(self, name: str) -> str | None:
        """Rows of an older paddock do not say which version they lie over, and none says what its wall is made of."""
        rows = self._store.list()
        silent = [row.id for row in rows if not row.layers]
        if silent:
            return f"{silent[0]} may need it: it was made by an older paddock"
        walled = [row.id for row in rows if row.sandbox.level in _WALLED]
        return f"{walled[0]} may need it: its wall is made of such" if walled and _PART.match(name) else None


class Memory:
    """Of virtual machines, on which no tree leans any more."""

    def __init__(self, pool: Callable[[], Pool]) -> None:
        self._pool = pool

    async def candidates(self) -> Sequence[Candidate]:
        pool = self._pool()
        lost = await asyncio.to_thread(Memories(pool).lost)
        why = "no sandbox and no snapshot needs it"
        return [_candidate(name, "memory", why, await _size(pool, name)) for name in lost]

    async def take(self, item: GarbageItem) -> str | None:
        gone = await asyncio.to_thread(Memories(self._pool()).drop, item.what)
        return None if gone else "a machine needs it by now"


class Outputs:
    """What commands of sandboxes that have ended have printed."""

    def __init__(self, remains: Remains, store: Store) -> None:
        self._remains, self._store = remains, store

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
    return f"{needed[name][0].by} needs it: {needed[name][0].why}" if name in needed else None


def _candidate(what: str, kind: str, why: str, size: int | None, kept: str | None = None) -> Candidate:
    return Candidate(item=GarbageItem(what=what, kind=kind, why=why, bytes=size, kept_because=kept))


async def _size(pool: Pool, name: str) -> int | None:
    try:
        return await asyncio.to_thread(pool.measure, name)
    except NotFound:
        return None


def _folder_sizes(folder: Path) -> dict[str, int | None]:
    names = os.listdir(folder) if folder.is_dir() else []
    return {name: _folder_size(f"{folder}/{name}") for name in names if name.startswith(Noun.SANDBOX)}


def _folder_size(path: str) -> int | None:
    try:
        with os.scandir(path) as files:
            return sum(file.stat(follow_symlinks=False).st_blocks * 512 for file in files)
    except OSError:
        return None


class Packages:
    """What the gateway keeps of registries: told, never taken, for the gateway keeps it below a ceiling itself."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    async def candidates(self) -> Sequence[Candidate]:
        number, size = await asyncio.to_thread(measure, self._directory)
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
