"""Workspaces: open, find, list, pin, delete; and who may write one."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Generator
from contextlib import contextmanager

from msgspec.structs import replace

from paddock.audit import AuditLog
from paddock.errors import AlreadyExists, InvalidArgument, InvalidState, NotFound
from paddock.model import (
    DeleteWorkspace,
    GetWorkspace,
    InspectWorkspace,
    Noun,
    OpenWorkspace,
    PinWorkspace,
    SandboxId,
    Workspace,
    WorkspaceId,
    WorkspaceState,
    WorkspaceStatus,
    mint,
)
from paddock.storage._base import Pool

from . import _validate
from ._clock import Clock, holder_alive
from ._gate import Entry
from ._live import Live
from ._remains import has_ended
from ._store import Store
from ._workspace_store import WorkspaceRow, WorkspaceStore, lease

DISK_MIB = 10_240
_CANDIDATES = 8


class Workspaces:
    """Whatever a workspace is led through, one service has it in hand, and its row says so: what a service that died has
    left half-done is undone, or done, by the next one that needs it or sweeps."""

    def __init__(self, *, rows: Store, store: WorkspaceStore, pool: Callable[[], Pool], live: Live, clock: Clock) -> None:
        self._rows, self._store, self._pool, self._live, self._clock = rows, store, pool, live, clock
        self._in_hand: set[WorkspaceId] = set()

    async def open(self, action: OpenWorkspace, entry: Entry) -> Workspace:
        _validate.check_workspace(action)
        row = await self._opened(action, entry.principal.id)
        entry.done({"workspace": row.id, "commit": row.workspace.commit})
        return self._shown(row)

    def get(self, action: GetWorkspace, entry: Entry) -> Workspace:
        return self._shown(self.find(action.workspace, entry.principal.id))

    def list(self, entry: Entry) -> tuple[Workspace, ...]:
        return tuple(self._shown(row) for row in self._store.list(entry.principal.id))

    def pin(self, action: PinWorkspace, entry: Entry) -> Workspace:
        _validate.check_pin(action.seconds)
        row = self.find(action.workspace, entry.principal.id)
        until = self._clock.wall() + action.seconds if action.seconds else None
        self._store.pin(row.id, until)
        return self._shown(replace(row, workspace=replace(row.workspace, pinned_until=until)))

    def find(self, reference: str, owner: str) -> WorkspaceRow:
        """By id, name, or unique prefix of an id. NotFound, InvalidArgument."""
        found = self._store.find(owner, reference, _CANDIDATES + 1)
        if not found:
            raise NotFound(
                f"no workspace {reference!r}", hint="`paddock workspaces` lists them", workspace=reference
            )
        if len(found) > 1:
            candidates = ", ".join(row.id for row in found[:_CANDIDATES])
            raise InvalidArgument(f"{reference!r} is the beginning of {candidates}", hint="give more characters")
        return found[0]

    async def enter(self, reference: str, owner: str) -> WorkspaceRow:
        """One that is laid out and that no living sandbox has: for `hand_over`. NotFound, InvalidState."""
        while True:
            row = await self._laid_out(self.find(reference, owner))
            if row is not None:
                await self._free(row)
                return row

    def hand_over(self, db: sqlite3.Connection, row: WorkspaceRow, sandbox: SandboxId) -> None:
        """In the transaction that records the sandbox. InvalidState if others were quicker."""
        lease(db, row, sandbox, self._clock.wall())

    def check_epoch(self, row: WorkspaceRow, epoch: int | None) -> None:
        """InvalidState if that was given and has passed: what was known of the workspace then is not so any more."""
        if epoch is not None and epoch != row.workspace.epoch:
            raise InvalidState(
                f"workspace {row.workspace.name!r} is in its epoch {row.workspace.epoch}, not {epoch}: another sandbox"
                " has had it since",
                hint=f"paddock status {row.workspace.name}",
                epoch=row.workspace.epoch,
            )

    async def delete(self, action: DeleteWorkspace, entry: Entry) -> None:
        row = await self._settled(self.find(action.workspace, entry.principal.id))
        if row is None:
            return
        self.check_epoch(row, action.epoch)
        await self._free(row)
        with self._taking(row, WorkspaceState.DELETING) as mine:
            self._remove(mine)

    def sweep(self, audit: AuditLog) -> None:
        """Takes away, or puts right, what dead services have left; and trees that no row knows."""
        names = self._pool().names()
        rows = {row.id: row for row in self._store.list()}
        for name in names:
            if name.startswith(Noun.WORKSPACE) and name not in rows and name not in self._in_hand:
                audit.event("tree.orphan", workspace=name, message="no workspace has it; deleted")
                self._pool().delete(name)
        for row in rows.values():
            if row.holder is not None and not self._is_in_hand(row):
                audit.event("workspace.unfinished", workspace=row.id, message=f"it was {row.state.value}; put right")
                self._recover(row)

    async def _opened(self, action: OpenWorkspace, owner: str) -> WorkspaceRow:
        while True:
            row = self._store.named(owner, action.name)
            if row is None:
                try:
                    return await self._make(action, owner)
                except _Taken:
                    continue  # somebody else has just made it: theirs is as good
            _check_same(row.workspace, action)
            row = await self._laid_out(row)
            if row is not None:
                self._store.touch(row.id, self._clock.wall())
                return row

    async def _make(self, action: OpenWorkspace, owner: str) -> WorkspaceRow:
        now = self._clock.wall()
        workspace = Workspace(
            id=WorkspaceId(mint(Noun.WORKSPACE)),
            name=action.name,
            owner=owner,
            state=WorkspaceState.MAKING,
            disk_mib=action.disk_mib or DISK_MIB,
            created_at=now,
            used_at=now,
            repository=action.url,
            branch=action.branch,
        )
        row = WorkspaceRow(workspace, self._live.holder)
        with self._hand(row.id):
            try:
                self._store.add(row)
            except AlreadyExists:
                raise _Taken from None
            try:
                self._pool().create(row.id, limit_bytes=workspace.disk_mib << 20)
                return self._settle(row, WorkspaceState.READY)
            except BaseException:
                self._remove(row)
                raise

    async def _laid_out(self, row: WorkspaceRow) -> WorkspaceRow | None:
        """It, when it is ready; None if it is gone."""
        return await self._settled(row)

    async def _settled(self, row: WorkspaceRow | None) -> WorkspaceRow | None:
        """It, when nobody has it in hand; None if it is gone. Waits for those who live, finishes for those who do not."""
        pause = 0.002
        while row is not None and row.holder is not None:
            if self._is_in_hand(row):
                await asyncio.sleep(pause)
                pause = min(pause * 1.5, 0.25)
            else:
                self._recover(row)
            row = self._store.get(row.id)
        return row

    def _recover(self, row: WorkspaceRow) -> None:
        """Undoes what a service was doing when it died, or does the rest. Nothing if another one is at it."""
        with self._hand(row.id):
            if not self._store.take(row, row.state, self._live.holder):
                return
            row = replace(row, holder=self._live.holder)
            match row.state:
                case WorkspaceState.MAKING | WorkspaceState.DELETING:
                    self._remove(row)
                case WorkspaceState.RESTORING:
                    self._pool().delete(row.id)
                    self._settle(row, WorkspaceState.EVICTED)
                case WorkspaceState.EVICTING | WorkspaceState.READY:
                    self._settle(row, WorkspaceState.READY)
                case WorkspaceState.EVICTED:
                    self._settle(row, WorkspaceState.EVICTED)

    def _remove(self, row: WorkspaceRow) -> None:
        """The row last: as long as there is one, somebody will see to the rest."""
        self._pool().delete(row.id)
        self._store.remove(row.id)

    def _settle(self, row: WorkspaceRow, state: WorkspaceState) -> WorkspaceRow:
        row = replace(row, workspace=replace(row.workspace, state=state))
        if not self._store.settle(row):
            raise InvalidState(f"workspace {row.workspace.name!r} was taken out of this service's hands")
        return replace(row, holder=None)

    async def _free(self, row: WorkspaceRow) -> None:
        """InvalidState while a sandbox lives over it. What is recorded as dead, its backend has to confirm."""
        id = row.workspace.sandbox
        sandbox = None if id is None else self._rows.get(id)
        if sandbox is None:
            return
        sandbox = await self._live.check(sandbox)
        if not has_ended(sandbox):
            raise InvalidState(
                f"sandbox {sandbox.id} has workspace {row.workspace.name!r}",
                hint=f"use that one, or end it: paddock kill {sandbox.sandbox.spec.name or sandbox.id}",
                sandbox=sandbox.id,
            )
        await self._live.confirm_dead(sandbox)

    def _shown(self, row: WorkspaceRow) -> Workspace:
        """As callers see it: a sandbox that is dead has nothing any more."""
        id = row.workspace.sandbox
        sandbox = None if id is None else self._rows.get(id)
        living = sandbox is not None and not has_ended(sandbox)
        return row.workspace if living else replace(row.workspace, sandbox=None)

    @contextmanager
    def _taking(self, row: WorkspaceRow, to: WorkspaceState) -> Generator[WorkspaceRow]:
        with self._hand(row.id):
            if not self._store.take(row, to, self._live.holder):
                raise InvalidState(
                    f"workspace {row.workspace.name!r} was taken into use at the same moment", hint="try again"
                )
            yield replace(row, holder=self._live.holder, workspace=replace(row.workspace, state=to))

    @contextmanager
    def _hand(self, id: WorkspaceId) -> Generator[None]:
        self._in_hand.add(id)
        try:
            yield
        finally:
            self._in_hand.discard(id)

    def _is_in_hand(self, row: WorkspaceRow) -> bool:
        if row.holder == self._live.holder:
            return row.id in self._in_hand
        return row.holder is not None and holder_alive(row.holder)


class _Taken(Exception):
    """The name was taken between the look and the record."""


def _check_same(workspace: Workspace, action: OpenWorkspace) -> None:
    """InvalidState if it is there and is not what is asked for: what is in it is not thrown away for another."""
    for field, asked, has in (
        ("repository", action.url, workspace.repository),
        ("branch", action.branch, workspace.branch),
        ("disk_mib", action.disk_mib, workspace.disk_mib),
    ):
        if asked is not None and asked != has:
            raise InvalidState(
                f"workspace {workspace.name!r} has {field} {has!r}, not {asked!r}",
                hint="take another name for the task: --task NAME",
                workspace=workspace.id,
            )
