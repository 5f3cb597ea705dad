"""What the door itself can find to be garbage: trees without a row, old templates, outputs, what is half made."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from paddock.keeper.layout import PACKAGES
from paddock.model import GarbageItem, Level, Noun
from paddock.storage._memories import Memories
from paddock.storage._trees import WAITING

from ._context import Component, Context
from ._garbage import Candidate, measured
from ._needs import Need
from ._remains import Remains
from ._spare_trees import SPARE
from ._workspace_tree import BESIDE

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
