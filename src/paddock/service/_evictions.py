"""Workspaces that leave the pool and come back: never before their work is on the disk elsewhere."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple

from msgspec.structs import replace

from paddock.errors import InvalidState, PaddockError
from paddock.model import WorkspaceState, WorkspaceStatus
from paddock.storage._base import Pool
from paddock.storage._trees import sync_file_system

from ._clock import Clock
from ._custody import Custody, Outrun
from ._gate import Entry
from ._grounds import Grounds
from ._keeping import Keeping
from ._tenancy import Tenancy
from ._workspace_store import WorkspaceRow, WorkspaceStore


class Evictable(NamedTuple):
    """A workspace whose files are in the pool. `why` it may go, or `refusal`: why it may not."""

    id: str
    name: str
    why: str
    clean: bool
    refusal: str | None


class Evictions:
    def __init__(
        self,
        *,
        store: WorkspaceStore,
        pool: Callable[[], Pool],
        clock: Clock,
        custody: Custody,
        tenancy: Tenancy,
        keeping: Keeping,
        grounds: Grounds,
    ) -> None:
        self._store, self._pool, self._clock = store, pool, clock
        self._custody, self._tenancy, self._keeping, self._grounds = custody, tenancy, keeping, grounds

    async def status(self, row: WorkspaceRow, entry: Entry | None) -> WorkspaceStatus:
        """Of one that was evicted: as it was then, for nothing can have changed."""
        return row.kept.status if row.kept is not None else await self._keeping.status(row, entry)

    async def laid_out(self, row: WorkspaceRow | None, entry: Entry | None) -> WorkspaceRow | None:
        """It, when its files are in the pool and nobody has it in hand; None if it is gone."""
        while True:
            row = await self._custody.settled(row)
            if row is None or row.state is WorkspaceState.READY:
                return row
            try:
                return await self._restore(row, entry)
            except Outrun:
                row = self._store.get(row.id)

    async def evictable(self, *, look: bool, entry: Entry | None = None) -> tuple[Evictable, ...]:
        """All that are laid out, in the order in which they may go: clean ones, then those with work in them, which is
        kept; of each, those used least recently first. Last, those that may not go, and why.

        Without `look` no workshop is opened to find out what is in them: each may hold work.
        """
        found: list[tuple[bool, bool, float, Evictable]] = []
        for row in self._store.list():
            if row.state is not WorkspaceState.EVICTED:
                used = self._tenancy.last_used(row)
                one = await self._evictable(row, used, look, entry)
                found.append((one.refusal is not None, not one.clean, used, one))
        return tuple(one for *_, one in sorted(found, key=lambda entry: entry[:3]))

    async def evict(self, id: str, entry: Entry | None = None) -> None:
        """Its work is on the disk, outside of the pool, before its tree goes. InvalidState: it may not go. Any other
        error: it could not be kept, and so it stays."""
        row = await self._custody.settled(self._store.get(id))
        if row is None or row.state is WorkspaceState.EVICTED:
            return
        await self._tenancy.free(row)
        refusal = self._refusal(row)
        if refusal is not None:
            raise InvalidState(f"workspace {row.workspace.name!r} stays: {refusal}", workspace=row.id)
        try:
            with self._custody.taking(row, WorkspaceState.EVICTING) as mine:
                kept = await self._keeping.keep(mine, entry)
                gone = replace(mine, kept=kept, base=None, layers=())
                evicted = self._custody.settle(gone, WorkspaceState.EVICTED)
        except Outrun:
            raise InvalidState(f"workspace {row.workspace.name!r} has just been taken into use") from None
        # Outrun: somebody lays it out again by now. He has taken the tree away, and made another.
        with suppress(Outrun), self._custody.taking(evicted, WorkspaceState.EVICTED) as mine:
            self._pool().delete(row.id)
            self._custody.settle(mine, WorkspaceState.EVICTED)

    async def _restore(self, row: WorkspaceRow, entry: Entry | None) -> WorkspaceRow:
        with self._custody.taking(row, WorkspaceState.RESTORING) as mine:
            try:
                self._pool().delete(row.id)  # whoever evicted it may have died before this
                laid = await self._grounds.begin(mine, entry)
                await self._keeping.lay(laid, entry)
                await asyncio.to_thread(self._sync, row.id)
                ready = self._custody.settle(replace(laid, kept=None), WorkspaceState.READY)
            except BaseException:
                self._pool().delete(row.id)
                raise
        self._keeping.archives.remove(row.id)
        return ready

    async def _evictable(self, row: WorkspaceRow, used: float, look: bool, entry: Entry | None) -> Evictable:
        refusal, clean = self._refusal(row), False
        why = f"not used for {_span(self._clock.wall() - used)}"
        if look and refusal is None:
            try:
                status = await self._keeping.status(row, entry)
            except PaddockError as error:
                refusal = f"what is in it cannot be made out: {error.message}"
            else:
                clean = status.clean
                why += ", nothing is only here" if clean else f", keeps {status.only_here}"
        return Evictable(row.id, row.workspace.name, why, clean, refusal)

    def _refusal(self, row: WorkspaceRow) -> str | None:
        """Why it may not be evicted, if it may not."""
        sandbox = self._tenancy.living(row)
        if sandbox is not None:
            return f"sandbox {sandbox.id} has it"
        if row.holder is not None:
            return f"it is {row.state.value}"
        left = (row.workspace.pinned_until or 0.0) - self._clock.wall()
        return f"it is pinned for {_span(left)}" if left > 0 else None

    def _sync(self, name: str) -> None:
        """What was written to the tree is on the disk when this returns."""
        tree = self._pool().open(name)
        try:
            sync_file_system(tree)
        finally:
            os.close(tree)


def _span(seconds: float) -> str:
    hours = seconds / 3600
    return f"{hours:.0f} h" if hours >= 2 else f"{max(0.0, seconds) / 60:.0f} min"
