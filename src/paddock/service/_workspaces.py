"""Workspaces: open, find, list, pin, delete; and who may write one."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import NamedTuple

from msgspec.structs import replace

from paddock.audit import AuditLog
from paddock.errors import AlreadyExists, InvalidArgument, InvalidState, NotFound, PaddockError
from paddock.model import (
    DeleteWorkspace,
    GetWorkspace,
    Noun,
    OpenWorkspace,
    PinWorkspace,
    Workspace,
    WorkspaceId,
    WorkspaceState,
    mint,
)
from paddock.storage._base import Pool
from paddock.storage._trees import sync_file_system

from . import _validate
from ._clock import Clock, holder_alive
from ._gate import Entry
from ._keeping import Keeping
from ._live import Live
from ._remains import has_ended
from ._store import Row, Store
from ._workspace_store import WorkspaceRow, WorkspaceStore
from ._workspace_tree import WorkspaceTree

DISK_MIB = 10_240
_CANDIDATES = 8


# What one is led through while it is looked at before it is deleted: from there, it is put back.
_LOCKED = {WorkspaceState.READY: WorkspaceState.EVICTING, WorkspaceState.EVICTED: WorkspaceState.RESTORING}


class Evictable(NamedTuple):
    """A workspace whose files are in the pool. `why` it may go, or `refusal`: why it may not."""

    id: str
    name: str
    why: str
    clean: bool
    refusal: str | None


class Workspaces:
    """Whatever a workspace is led through, one service has it in hand, and its row says so: what a service that died
    has left half-done is undone, or done, by the next one that needs it or sweeps."""

    def __init__(
        self, *, rows: Store, store: WorkspaceStore, pool: Callable[[], Pool], live: Live, clock: Clock
    ) -> None:
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
            raise NotFound(f"no workspace {reference!r}", hint="`paddock workspaces` lists them", workspace=reference)
        row, *more = found
        if more:
            candidates = ", ".join(row.id for row in found[:_CANDIDATES])
            raise InvalidArgument(f"{reference!r} is the beginning of {candidates}", hint="give more characters")
        return row

    async def resolve(self, reference: str, owner: str) -> WorkspaceTree:
        """The tree of a workspace that is laid out, for the sandbox that will have it next. The one that had it last is
        dead, or `take` will say that it is not. NotFound, InvalidArgument."""
        while True:
            row = await self._laid_out(self.find(reference, owner))
            if row is not None:
                await self._occupant(row)
                return WorkspaceTree(row.id, row.layers, row.repository, row.workspace.epoch + 1)

    def take(self, row: Row) -> None:
        """In the transaction that records the sandbox. InvalidState: another one lives over it, or was quicker."""
        tree = row.workspace
        assert tree is not None
        if self._store.lease(tree.tree, row.id, tree.epoch, self._clock.wall()):
            return
        found = self._store.get(tree.tree)
        if found is None:
            raise NotFound(f"workspace {tree.tree} was deleted")
        raise self._held(found)

    def check_epoch(self, row: WorkspaceRow, epoch: int | None) -> None:
        """InvalidState if that was given and has passed: what was known of the workspace then is not so any more."""
        if epoch is not None and epoch != row.workspace.epoch:
            raise InvalidState(
                f"workspace {row.workspace.name!r} is in its epoch {row.workspace.epoch}, not {epoch}: another sandbox"
                " has had it since",
                hint=f"paddock status {row.workspace.name}",
                epoch=row.workspace.epoch,
            )

    async def status(self, action: InspectWorkspace, entry: Entry) -> WorkspaceStatus:
        row = await self._settled(self.find(action.workspace, entry.principal.id))
        if row is None:
            raise NotFound(f"workspace {action.workspace!r} was deleted at the same moment")
        status = row.kept.status if row.kept is not None else await self._keeping.status(row)
        return replace(status, workspace=self._shown(row))

    async def delete(self, action: DeleteWorkspace, entry: Entry) -> None:
        row = await self._settled(self.find(action.workspace, entry.principal.id))
        if row is None:
            return
        self.check_epoch(row, action.epoch)
        await self._free(row)
        with self._taking(row, _LOCKED[row.state]) as mine:
            try:
                if not action.discard:
                    _refuse_loss(row, row.kept.status if row.kept is not None else await self._keeping.status(row))
                if not self._store.take(mine, WorkspaceState.DELETING, self._live.holder):
                    raise self._held(row)
            except BaseException:
                self._settle(mine, row.state)
                raise
            self._remove(row)

    async def evictable(self) -> tuple[Evictable, ...]:
        """All that are laid out, in the order in which they may go: clean ones, then those with work in them, which is
        kept; of each, those used least recently first. Last, those that may not go, and why."""
        found: list[tuple[tuple[bool, bool, float], Evictable]] = []
        for row in self._store.list():
            if row.state is WorkspaceState.EVICTED:
                continue
            status, refusal = None, self._staying(row)
            if refusal is None:
                try:
                    status = await self._keeping.status(row)
                except PaddockError as error:
                    refusal = f"what is in it cannot be made out: {error.message}"
            clean = status is not None and status.clean
            kept = "" if status is None or clean else f", and has {status.only_here}, which is kept"
            why = f"not used for {_span(self._clock.wall() - self._last_used(row))}{kept}"
            candidate = Evictable(row.id, row.workspace.name, why, clean, refusal)
            found.append(((refusal is not None, not clean, self._last_used(row)), candidate))
        return tuple(candidate for _, candidate in sorted(found, key=lambda pair: pair[0]))

    async def evict(self, id: str) -> None:
        """Its work is on the disk, outside of the pool, before its tree goes. InvalidState: it may not go. Any other
        error: it could not be kept, and so it stays."""
        row = await self._settled(self._store.get(id))
        if row is None or row.state is WorkspaceState.EVICTED:
            return
        await self._free(row)
        refusal = self._staying(row)
        if refusal is not None:
            raise InvalidState(f"workspace {row.workspace.name!r} stays: {refusal}", workspace=row.id)
        with self._taking(row, WorkspaceState.EVICTING) as mine:
            try:
                kept = await self._keeping.keep(mine)
                self._settle(replace(mine, kept=kept, layers=()), WorkspaceState.EVICTED)
            except BaseException:
                self._settle(mine, WorkspaceState.READY)
                raise
        self._pool().delete(row.id)

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
            elif row.state is WorkspaceState.EVICTED and row.id in names:
                self._clear(row)
        for name in self._keeping.archives.names():
            row = self._store.get(name)
            if row is None or (row.kept is None and not self._is_in_hand(row)):
                self._keeping.archives.remove(name)

    def _clear(self, row: WorkspaceRow) -> None:
        """Takes away the tree of an evicted one: whoever evicted it died in between."""
        try:
            with self._taking(row, WorkspaceState.EVICTED) as mine:
                self._pool().delete(row.id)
                self._settle(mine, WorkspaceState.EVICTED)
        except _Taken:
            return  # somebody lays it out

    def _staying(self, row: WorkspaceRow) -> str | None:
        """Why it may not be evicted, if it may not."""
        sandbox = self._living(row)
        if sandbox is not None:
            return f"sandbox {sandbox.id} has it"
        if row.holder is not None:
            return f"it is {row.state.value}"
        pinned = row.workspace.pinned_until
        return None if pinned is None or pinned <= self._clock.wall() else f"it is pinned for {_span(pinned - self._clock.wall())}"

    def _last_used(self, row: WorkspaceRow) -> float:
        """When its last sandbox ended, or it was opened."""
        id = row.workspace.sandbox
        sandbox = None if id is None else self._rows.get(id)
        ended = None if sandbox is None else sandbox.sandbox.ended_at
        return max(row.workspace.used_at, ended or 0.0)

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
                raise _Taken("it is there by now") from None
            try:
                return self._settle(self._begin(row), WorkspaceState.READY)
            except BaseException:
                self._remove(row)
                raise

    async def _laid_out(self, row: WorkspaceRow | None) -> WorkspaceRow | None:
        """It, when its files are in the pool; None if it is gone."""
        while True:
            row = await self._settled(row)
            if row is None or row.state is WorkspaceState.READY:
                return row
            try:
                return await self._restore(row)
            except _Taken:
                row = self._store.get(row.id)

    async def _restore(self, row: WorkspaceRow) -> WorkspaceRow:
        with self._taking(row, WorkspaceState.RESTORING) as mine:
            try:
                self._pool().delete(row.id)  # whoever evicted it may have died before this
                laid = self._begin(mine)
                await self._keeping.lay(laid)
                await asyncio.to_thread(self._sync, row.id)
                ready = self._settle(replace(laid, kept=None), WorkspaceState.READY)
            except BaseException:
                self._pool().delete(row.id)
                self._settle(mine, WorkspaceState.EVICTED)
                raise
        self._keeping.archives.remove(row.id)
        return ready

    def _begin(self, row: WorkspaceRow) -> WorkspaceRow:
        """Makes the tree, as it was before anybody wrote to it."""
        self._pool().create(row.id, limit_bytes=row.workspace.disk_mib << 20)
        return row

    def _sync(self, name: str) -> None:
        """What was written to the tree is on the disk when this returns."""
        tree = self._pool().open(name)
        try:
            sync_file_system(tree)
        finally:
            os.close(tree)

    async def _settled(self, row: WorkspaceRow | None) -> WorkspaceRow | None:
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
        self._keeping.archives.remove(row.id)
        self._store.remove(row.id)

    def _settle(self, row: WorkspaceRow, state: WorkspaceState) -> WorkspaceRow:
        row = replace(row, workspace=replace(row.workspace, state=state))
        if not self._store.settle(row):
            raise InvalidState(f"workspace {row.workspace.name!r} was taken out of this service's hands")
        return replace(row, holder=None)

    async def _free(self, row: WorkspaceRow) -> None:
        """InvalidState while a sandbox lives over it."""
        if await self._occupant(row):
            raise self._held(row)

    async def _occupant(self, row: WorkspaceRow) -> Row | None:
        """The sandbox that has it. What is recorded as dead, its backend has to confirm: two that write one tree would
        be its end."""
        id = row.workspace.sandbox
        sandbox = None if id is None else self._rows.get(id)
        if sandbox is not None and not has_ended(sandbox):
            sandbox = await self._live.check(sandbox)  # it may have died unnoticed
        if sandbox is None or not has_ended(sandbox):
            return sandbox
        await self._live.confirm_dead(sandbox)
        return None

    def _living(self, row: WorkspaceRow) -> Row | None:
        """The sandbox that has it, as far as is recorded."""
        id = row.workspace.sandbox
        sandbox = None if id is None else self._rows.get(id)
        return None if sandbox is None or has_ended(sandbox) else sandbox

    def _held(self, row: WorkspaceRow) -> InvalidState:
        sandbox, name = self._living(row), row.workspace.name
        if sandbox is None:
            return InvalidState(
                f"workspace {name!r} is {row.state.value}, or was given away meanwhile", hint="try again"
            )
        return InvalidState(
            f"sandbox {sandbox.id} has workspace {name!r}, and only one may write it",
            hint=f"use that one, or end it: paddock kill {sandbox.sandbox.spec.name or sandbox.id}",
            sandbox=sandbox.id,
        )

    def _shown(self, row: WorkspaceRow) -> Workspace:
        """As callers see it: a sandbox that is dead has nothing any more."""
        return row.workspace if self._living(row) else replace(row.workspace, sandbox=None)

    @contextmanager
    def _taking(self, row: WorkspaceRow, to: WorkspaceState) -> Generator[WorkspaceRow]:
        with self._hand(row.id):
            if not self._store.take(row, to, self._live.holder):
                raise _Taken(f"workspace {row.workspace.name!r} was taken into use at the same moment", hint="try again")
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


class _Taken(InvalidState, code="taken"):
    """Somebody else was quicker, between the look and the record."""


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


def _refuse_loss(row: WorkspaceRow, status: WorkspaceStatus) -> None:
    if not status.clean:
        name, some = row.workspace.name, ": " + ", ".join(status.paths[:5]) if status.paths else ""
        raise InvalidState(
            f"workspace {name!r} has what is nowhere else: {status.only_here}{some}",
            hint=f"paddock status {name}; to lose it: paddock workspaces --delete {name} --discard",
            workspace=row.id,
        )


def _span(seconds: float) -> str:
    hours = seconds / 3600
    return f"{hours:.0f} h" if hours >= 2 else f"{max(0.0, seconds) / 60:.0f} min"
