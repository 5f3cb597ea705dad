"""The pool against the records, both ways: what `doctor --storage` says."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

from paddock.errors import PaddockError
from paddock.keeper.layout import POOL_IMAGE
from paddock.model import Check, CheckStorage, Noun, State
from paddock.storage._base import Pool

from ._context import Component, Context
from ._garbage import NOUNS, Garbage
from ._gate import Entry
from ._handlers import handles

_SHOWN = 8


class Storage(Component):
    def __init__(self, context: Context, garbage: Garbage) -> None:
        super().__init__(context)
        self._garbage = garbage

    @handles(CheckStorage)
    async def check(self, action: CheckStorage, entry: Entry) -> tuple[Check, ...]:
        try:
            pool = self._pool()
            if action.repair:
                await self._garbage.sweep()
            return (
                *await asyncio.to_thread(pool.checks),
                *await asyncio.to_thread(pool.examine, scrub=action.scrub),
                await self._needless(pool),
                await self._missing(pool),
                await asyncio.to_thread(self._unfinished, pool),
                await self._ceilings(pool),
                self._mounts(),
            )
        except (PaddockError, OSError) as error:
            hint = error.hint if isinstance(error, PaddockError) else None
            return (_check("pool", [str(error)], "", fix=hint or f"the last lines of {self._state_dir}/keeper.log"),)

    async def _needless(self, pool: Pool) -> Check:
        names = await asyncio.to_thread(pool.names)  # first the trees, then the rows (_needs.py)
        needed = self._needs.by_tree()
        known = (*NOUNS, Noun.TEMPLATE.value, "tb_")
        lost = [name for name in names if name not in needed and name.startswith(NOUNS)]
        strange = [f"{name}, of no kind that is known" for name in names if not name.startswith(known)]
        return _check(
            "trees",
            [*lost, *strange],
            f"each of {len(names)} is needed by something that is recorded",
            fix="paddock gc",
        )

    async def _missing(self, pool: Pool) -> Check:
        first, number = await self._lost(pool)
        # What was missing twice: a kill or a rollback may have come between reading the rows and the trees.
        lost = [words for words in (await self._lost(pool))[0] if words in first] if first else []
        return _check(
            "records",
            lost,
            f"each of {number} living sandboxes, snapshots and workspaces has its trees",
            fix="paddock kill, paddock snapshots --delete: what they name is lost",
        )

    async def _lost(self, pool: Pool) -> tuple[list[str], int]:
        wanted = self._needs.whole()
        names = set(await asyncio.to_thread(pool.names))
        lost = [
            f"{tree}, which {need.by} needs"
            for tree, needs in wanted.items()
            if not tree.startswith(Noun.REPOSITORY) and tree not in names
            for need in needs
        ]
        return lost, len({need.by for needs in wanted.values() for need in needs})

    def _unfinished(self, pool: Pool) -> Check:
        left = list(pool.unfinished())
        left += [path.name for path in (self._state_dir / (POOL_IMAGE + ".tmp"),) if path.exists()]
        left += [path.name for path in self._state_dir.glob(".probe-*")]
        return _check("half made", left, "nothing was left by killed programs", fix="paddock doctor --storage --repair")

    async def _ceilings(self, pool: Pool) -> Check:
        wrong: list[str] = []
        limited = 0
        for row in self._store.list():
            if row.state not in (State.RUNNING, State.PAUSED):
                continue
            try:
                usage = await asyncio.to_thread(pool.usage, row.id)
            except PaddockError:
                continue  # said above, or gone in order
            if usage.used_bytes is not None:
                limited += 1
                asked = row.sandbox.spec.limits.disk_mib << 20
                if usage.limit_bytes != asked:
                    wrong.append(f"{row.id} has {usage.limit_bytes} bytes in place of {asked}")
        return _check("ceilings", wrong, f"{limited} sandboxes have the quota that was asked for", fix="paddock kill")

    def _mounts(self) -> Check:
        """The keeper mounts out of everybody's sight: what can be seen was mounted by somebody else."""
        seen = sorted(path for path in _mount_points() if path.startswith(f"{self._state_dir}/"))
        return _check("mounts", seen, "none of the pool shows on the machine", fix="umount")


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
