"""Who leads a workspace from one state to the next: one service, and its row says so.

What a service that died has left half-done is undone, or done, by the next one that needs it or sweeps.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from contextlib import contextmanager

from paddock.audit import AuditLog
from paddock.errors import InvalidState
from paddock.model import WorkspaceId, WorkspaceState, replace
from paddock.storage._base import Pool
from paddock.storage._kept import KeptArchives

from ._clock import holder_alive
from ._grounds import Grounds
from ._workspace_store import WorkspaceRow, WorkspaceStore


class Outrun(Exception):
    """Somebody else was quicker, between the look and the record: look again."""


class Custody:
    def __init__(
        self,
        *,
        store: WorkspaceStore,
        pool: Callable[[], Pool],
        archives: KeptArchives,
        grounds: Grounds,
        holder: str,
    ) -> None:
        self._store, self._pool, self._archives, self._grounds = store, pool, archives, grounds
        self._holder = holder
        self._in_hand: set[WorkspaceId] = set()

    @contextmanager
    def making(self, row: WorkspaceRow) -> Generator[WorkspaceRow]:
        """Records a new one. Outrun: the name is taken. Leaving it by an exception takes all of it away."""
        row = replace(row, holder=self._holder)
        with self._hand(row.id):
            if not self._store.add(row):
                raise Outrun
            try:
                yield row
            except BaseException:
                self.remove(row)
                raise

    @contextmanager
    def taking(self, row: WorkspaceRow, to: WorkspaceState) -> Generator[WorkspaceRow]:
        """Leads one that nobody has in hand, and over which nothing lives, from its state to `to`. Outrun: others have.

        Leaving it by an exception puts back what `row` says, unless it was doomed.
        """
        with self._hand(row.id):
            if not self._store.take(row, to, self._holder):
                raise Outrun
            mine = replace(row, holder=self._holder, workspace=replace(row.workspace, state=to))
            try:
                yield mine
            except BaseException:
                self._store.settle(replace(mine, workspace=row.workspace), to)
                raise

    def settle(self, row: WorkspaceRow, state: WorkspaceState) -> WorkspaceRow:
        """Records what came of it, and lets go of it."""
        settled = replace(row, workspace=replace(row.workspace, state=state))
        if not self._store.settle(settled, row.state):
            raise InvalidState(f"workspace {row.workspace.name!r} was taken out of this service's hands")
        return replace(settled, holder=None)

    def doom(self, row: WorkspaceRow) -> None:
        """From here on it will go, whoever dies. Outrun: it is not in our hands."""
        if not self._store.take(row, WorkspaceState.DELETING, self._holder):
            raise Outrun

    def remove(self, row: WorkspaceRow) -> None:
        """The row last: as long as there is one, somebody will see to the rest."""
        self._pool().delete(row.id)
        self._archives.remove(row.id)
        self._grounds.release(row)
        self._store.remove(row.id)

    async def settled(self, row: WorkspaceRow | None) -> WorkspaceRow | None:
        """It, when nobody has it in hand; None if it is gone. What the dead have left is put right."""
        pause = 0.002
        while row is not None and row.holder is not None:
            if self._is_in_hand(row):
                await asyncio.sleep(pause)
                pause = min(pause * 1.5, 0.25)
            else:
                self._recover(row)
            row = self._store.get(row.id)
        return row

    def sweep(self, audit: AuditLog) -> None:
        """Puts right what the dead have left, and takes away archives that no row knows; trees without one are orphans
        like any other."""
        trees, archives = self._pool().names(), self._archives.names()
        rows = {row.id: row for row in self._store.list()}
        for row in rows.values():
            if row.holder is not None and not self._is_in_hand(row):
                audit.event("workspace.unfinished", workspace=row.id, message=f"it was {row.state.value}; put right")
                self._recover(row)
            elif row.state is WorkspaceState.EVICTED and row.id in trees:
                self._recover(row)  # whoever evicted it died before the tree was gone
        for name in archives:
            row = self._store.get(name)  # as it is now: it may have been evicted again since it was listed
            if row is None or (row.kept is None and row.holder is None):
                self._archives.remove(name)

    def _recover(self, row: WorkspaceRow) -> None:
        """Undoes what a service was doing when it died, or does the rest. Nothing if another one is at it."""
        with self._hand(row.id):
            if not self._store.take(row, row.state, self._holder):
                return
            mine = replace(row, holder=self._holder)
            match row.state:
                case WorkspaceState.MAKING | WorkspaceState.DELETING:
                    self.remove(mine)
                case WorkspaceState.RESTORING | WorkspaceState.EVICTED:
                    self._pool().delete(row.id)
                    self.settle(mine, WorkspaceState.EVICTED)
                case WorkspaceState.EVICTING | WorkspaceState.READY:
                    self.settle(mine, WorkspaceState.READY)

    @contextmanager
    def _hand(self, id: WorkspaceId) -> Generator[None]:
        mine = id not in self._in_hand
        self._in_hand.add(id)
        try:
            yield
        finally:
            if mine:
                self._in_hand.discard(id)

    def _is_in_hand(self, row: WorkspaceRow) -> bool:
        if row.holder == self._holder:
            return row.id in self._in_hand
        return row.holder is not None and holder_alive(row.holder)
