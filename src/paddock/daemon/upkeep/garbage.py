"""Delete what no row needs and, while the pool is too full, what can be made again. Nothing alive is touched.

The collectors here find trees without a row, old templates, outputs, and incomplete ones; others are beside what they
collect.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

from paddock import model
from paddock.daemon.context import Component, Context, Operation, handles
from paddock.daemon.sandboxes.cleanup import Cleanup
from paddock.daemon.store.candidates import Candidate, Collector, discarded, measured
from paddock.daemon.store.references import TreeReference, trees_needed, why_needed
from paddock.daemon.store.trees import SPARE, STAGED
from paddock.errors import PaddockError
from paddock.model import Check, GarbageItem, GarbageReport, IdPrefix, Level, PoolSpace, State, replace
from paddock.storage.pool.base import Pool
from paddock.storage.pool.config import PoolConfig
from paddock.storage.pool.memories import Memories
from paddock.storage.pool.trees import WAITING
from paddock.supervisor.layout import PACKAGES, POOL_IMAGE


class _Space:
    """How full the pool is, as deleted things go. By count: the file system gives their room back by and by."""

    def __init__(self, space: PoolSpace, config: PoolConfig) -> None:
        self.space, self._config = space, config
        self._full = config.is_full(space)

    @property
    def wanted(self) -> bool:
        return self._full and not self._config.has_room(self.space)

    def gain(self, size: int) -> None:
        size = min(size, self.space.used_bytes)
        self.space = replace(
            self.space,
            used_bytes=self.space.used_bytes - size,
            available_bytes=self.space.available_bytes + size,
        )

    def message(self) -> str:
        return f"the pool is {self.space.fill:.0%} full, and this goes from {self._config.high:.0%} on"


async def _take(one: Candidate) -> str | None:
    """Delete one candidate, and return why it stays, if it does. A failure doesn't stop the others."""
    assert one.take is not None, f"{one.what} is never deleted"
    try:
        return await one.take(one.what)
    except (PaddockError, OSError) as error:
        return str(error)


_KINDS = (IdPrefix.SANDBOX, IdPrefix.SNAPSHOT, IdPrefix.BASE, IdPrefix.WORKSHOP, IdPrefix.WORKSPACE)
NOUNS = (*(noun.value for noun in _KINDS), STAGED, SPARE, WAITING)
"""Beginnings of names of trees that rows describe, or that are in use."""
_WALLED = (Level.GVISOR, Level.MICROVM)
_PART = re.compile(r"t[pb]_kit_", re.ASCII)
_SHOWN = 8


class Storage(Component):
    """The pool against the records, both ways: what is not needed goes, and `doctor --storage` says what is missing."""

    def __init__(self, context: Context, cleanup: Cleanup, collectors: Sequence[Collector]) -> None:
        """Prepare. `collectors` come after those for old templates."""
        super().__init__(context)
        self._cleanup, self._alone = cleanup, asyncio.Lock()
        """Two that collect at once would take twice as much as is to go."""
        self._sweepers = (self.unfinished, self.orphans, self.memory, self.outputs)
        """They find what is gone anyway, at each sweep. The others come after them."""
        self._collectors = (self.old_templates, *collectors, self.packages)

    @handles(model.CollectGarbage)
    async def perform(self, action: model.CollectGarbage, op: Operation) -> GarbageReport:
        report = await self.collect(dry_run=action.dry_run)
        gone = [item.what for item in report.items if item.kept_because is None]
        op.done({"dry_run": report.dry_run, "number": len(gone), "gone": gone[:100]})
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
        """Delete what costs nothing to find, or everything that may go when the pool has become too full. The pool
        grows first, if it can."""
        pool = self._pool()
        await asyncio.to_thread(pool.fit)
        async with self._alone:
            full = pool.config.is_full(await asyncio.to_thread(pool.space))
            await self._collect((*self._sweepers, *(self._collectors if full else ())), dry_run=False)

    async def _collect(self, collectors: Sequence[Collector], *, dry_run: bool) -> GarbageReport:
        pool = self._pool()
        before = await asyncio.to_thread(pool.space)
        room = _Space(before, pool.config)
        items: list[GarbageItem] = []
        for collector in collectors:
            for one in await collector():
                kept = one.kept
                if kept is None and one.only_when_full and not room.wanted:
                    kept = room.message()
                if kept is None and not dry_run:
                    kept = await _take(one)
                if kept is None:
                    room.gain(one.size or 0)
                items.append(GarbageItem(what=one.what, kind=one.kind, why=one.why, bytes=one.size, kept_because=kept))
        return GarbageReport(items=tuple(items), dry_run=dry_run, before=before, after=room.space)

    async def unfinished(self) -> Sequence[Candidate]:
        """Find trees that killed programs left half made or half deleted."""
        pool, why = self._pool(), "a program was killed while it made or deleted a tree"

        async def take(name: str) -> str | None:
            if name not in await asyncio.to_thread(pool.unfinished):
                return None
            return (await asyncio.to_thread(pool.sweep)).get(name)  # all of them at once

        left = await asyncio.to_thread(pool.unfinished)
        return [Candidate(name, "unfinished", why, None, take) for name in left]

    async def orphans(self) -> Sequence[Candidate]:
        """Find trees that neither a row nor this process needs."""
        pool, why = self._pool(), "nothing that is recorded needs it"

        async def take(name: str) -> str | None:
            if (kept := why_needed(trees_needed(self._store), name)) is None:
                self._audit.event("tree.orphan", sandbox=name, message=f"{why}; deleted")
                await asyncio.to_thread(pool.delete, name)
            return kept

        _, lost = await self._needless(pool)
        return [Candidate(name, "orphan", why, await measured(pool, name), take) for name in lost]

    async def _needless(self, pool: Pool) -> tuple[Sequence[str], list[str]]:
        """Return all trees, and those that neither a row nor this process needs."""
        names = await asyncio.to_thread(pool.names)  # first the trees, then the rows (store/references.py)
        needed = trees_needed(self._store).keys() | pool.in_use
        return names, [name for name in names if name.startswith(NOUNS) and name not in needed]

    async def memory(self) -> Sequence[Candidate]:
        """Find memory files of virtual machines that no tree needs any more."""
        pool, why = self._pool(), "no sandbox and no snapshot needs it"

        take = partial(discarded, Memories(pool).drop)
        lost = await asyncio.to_thread(Memories(pool).lost)
        return [Candidate(name, "memory", why, await measured(pool, name), take) for name in lost]

    async def outputs(self) -> Sequence[Candidate]:
        """Find outputs of commands in sandboxes that have ended."""
        take = partial(asyncio.to_thread, self._cleanup.remove_outputs)
        sizes = await asyncio.to_thread(_folder_sizes, self._cleanup.outputs)
        living = {row.id for row in self._store.list()}
        gone = {name: size for name, size in sizes.items() if name not in living}
        return [Candidate(name, "output", "its sandbox has ended", gone[name], take) for name in gone]

    async def old_templates(self) -> Sequence[Candidate]:
        """Find versions of templates that a newer one has replaced, and unfinished ones."""
        pool, templates = self._pool(), self._templates()

        async def take(name: str) -> str | None:
            return await discarded(templates.discard, name, self._template_kept(trees_needed(self._store), name))

        names = [name for name in await asyncio.to_thread(pool.names) if templates.is_version(name)]
        current = await asyncio.to_thread(templates.versions)
        needed = trees_needed(self._store)
        found: list[Candidate] = []
        for name in names:
            if name not in current:
                whole = name.startswith(IdPrefix.TEMPLATE)
                why = "a newer version has replaced it" if whole else "its builder did not come to an end"
                if whole and _PART.match(name):
                    why = "no sandbox needs it, and it can be made again"
                size, kept = await measured(pool, name), self._template_kept(needed, name)
                found.append(Candidate(name, "template", why, size, take, kept))
        return found

    def _template_kept(self, needed: Mapping[str, tuple[TreeReference, ...]], name: str) -> str | None:
        """Return why a template stays, if it does. Rows of an older paddock don't say which version they lie over, and
        none names the templates that its isolation is made of."""
        if name in needed:
            return why_needed(needed, name)
        if "tp" + name[2:] in self._pool().in_use:
            return "the daemon has used it since its start"
        rows = self._store.list()
        silent = [row.id for row in rows if not row.layers]
        if silent:
            return f"{silent[0]} may need it: it was made by an older paddock"
        walled = [row.id for row in rows if row.sandbox.level in _WALLED]
        return f"{walled[0]} may need it: its isolation is made of such" if walled and _PART.match(name) else None

    async def packages(self) -> Sequence[Candidate]:
        """Report the gateway's package cache, which is never deleted here."""
        number, size = await asyncio.to_thread(measure, self._state_dir / PACKAGES)
        why, kept = (
            f"{number} files of registries, which would be fetched again",
            "the gateway keeps it below its limit",
        )
        return [Candidate("package cache", "packages", why, size, None, kept)] if number else []

    @handles(model.CheckStorage)
    async def check(self, action: model.CheckStorage, op: Operation) -> tuple[Check, ...]:
        try:
            pool = self._pool()
            if action.repair:
                await self.sweep()
            return (
                *await asyncio.to_thread(pool.checks),
                *await asyncio.to_thread(pool.examine, scrub=action.scrub),
                await self._trees(pool),
                await self._missing(pool),
                await asyncio.to_thread(self._unfinished, pool),
                await self._limits(pool),
                self._mounts(),
            )
        except (PaddockError, OSError) as error:
            hint = error.hint if isinstance(error, PaddockError) else None
            return (
                _check("pool", [str(error)], "", fix=hint or f"the last lines of {self._state_dir}/supervisor.log"),
            )

    async def _trees(self, pool: Pool) -> Check:
        names, lost = await self._needless(pool)
        known = (*NOUNS, IdPrefix.TEMPLATE.value, "tb_")
        strange = [f"{name}, of no kind that is known" for name in names if not name.startswith(known)]
        return _check(
            "trees",
            [*lost, *strange],
            f"each of {len(names)} is needed by something that is recorded",
            fix="paddock gc",
        )

    async def _missing(self, pool: Pool) -> Check:
        first, number = await self._lost(pool)
        # Only those missing twice: a kill or a rollback may have come between reading rows and trees.
        lost = [message for message in (await self._lost(pool))[0] if message in first] if first else []
        return _check(
            "records",
            lost,
            f"each of {number} living sandboxes, snapshots and workspaces has its trees",
            fix="paddock kill, paddock snapshot rm: what they name is lost",
        )

    async def _lost(self, pool: Pool) -> tuple[list[str], int]:
        wanted = trees_needed(self._store, whole=True)
        names = set(await asyncio.to_thread(pool.names))
        lost = [
            f"{tree}, which {reference.by} needs"
            for tree, references in wanted.items()
            if not tree.startswith(IdPrefix.REPOSITORY) and tree not in names
            for reference in references
        ]
        return lost, len({reference.by for references in wanted.values() for reference in references})

    def _unfinished(self, pool: Pool) -> Check:
        left = list(pool.unfinished())
        left += [path.name for path in (self._state_dir / (POOL_IMAGE + ".tmp"),) if path.exists()]
        left += [path.name for path in self._state_dir.glob(".probe-*")]
        return _check("half made", left, "nothing was left by killed programs", fix="paddock doctor --storage --repair")

    async def _limits(self, pool: Pool) -> Check:
        wrong: list[str] = []
        limited = 0
        for row in self._store.list():
            if row.state not in (State.RUNNING, State.PAUSED):
                continue
            try:
                usage = await asyncio.to_thread(pool.usage, row.id)
            except PaddockError:
                continue  # said above, or gone in order
            if usage is not None:
                limited += 1
                limit = row.sandbox.spec.limits.disk_mib << 20
                if usage.limit_bytes != limit:
                    wrong.append(f"{row.id} has {usage.limit_bytes} bytes in place of {limit}")
        return _check("limits", wrong, f"{limited} sandboxes have the quota that was asked for", fix="paddock kill")

    def _mounts(self) -> Check:
        """Check that the host sees no mount: the supervisor mounts in a private namespace."""
        seen = sorted(path for path in _mount_points() if path.startswith(f"{self._state_dir}/"))
        return _check("mounts", seen, "none of the pool shows on the machine", fix="umount")


def _folder_sizes(folder: Path) -> dict[str, int]:
    names = os.listdir(folder) if folder.is_dir() else []
    return {name: measure(folder / name)[1] for name in names if name.startswith(IdPrefix.SANDBOX)}


def measure(directory: Path) -> tuple[int, int]:
    """Return how many files are in a directory, and their bytes; zeros if there is none."""
    sizes: list[int] = []
    with suppress(OSError), os.scandir(directory) as entries:
        for entry in entries:
            with suppress(OSError):  # it has just gone
                sizes.append(entry.stat(follow_symlinks=False).st_size)
    return len(sizes), sum(sizes)


def _mount_points() -> Iterator[str]:
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        yield line.split()[4].encode().decode("unicode_escape")


def _check(name: str, problems: list[str], fine: str, *, fix: str) -> Check:
    more = f" and {len(problems) - _SHOWN} more" if len(problems) > _SHOWN else ""
    return Check(
        area="storage",
        name=name,
        status="missing" if problems else "ok",
        detail="; ".join(problems[:_SHOWN]) + more if problems else fine,
        fix=fix if problems else None,
    )
