"""Workspaces: open, find, list, look, pin, delete."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import NamedTuple

from paddock.errors import InvalidState
from paddock.model import (
    Acquired,
    DeleteWorkspace,
    GetWorkspace,
    InspectWorkspace,
    ListWorkspaces,
    Noun,
    OpenWorkspace,
    PinWorkspace,
    Principal,
    Workspace,
    WorkspaceId,
    WorkspaceState,
    WorkspaceStatus,
    mint,
    replace,
)

from . import _validate
from ._context import Component, Context
from ._evictions import Evictions, Tenancy, check_epoch
from ._gate import Entry
from ._handlers import handles
from ._live import Live
from ._policies import Policies
from ._shelf import Shelf
from ._store import Row, the_one
from ._workspace_store import WorkspaceRow, WorkspaceStore
from ._workspace_tree import WorkspaceTree

DISK_MIB = 10_240


class Begun(NamedTuple):
    """A workspace, as callers see it, and its tree."""

    workspace: Workspace
    tree: WorkspaceTree


class Workspaces(Component):
    def __init__(self, context: Context, live: Live, shelf: Shelf, policies: Policies) -> None:
        super().__init__(context)
        self._policies, self._rows = policies, WorkspaceStore(self._store)
        self._tenancy, self._shelf = Tenancy(context, live), shelf
        self.evictions = Evictions(context, self._tenancy, shelf)

    @handles(GetWorkspace)
    async def get(self, action: GetWorkspace, entry: Entry) -> Workspace:
        return self._tenancy.shown(self.find(action.workspace, entry.principal.id))

    @handles(ListWorkspaces)
    async def list(self, action: ListWorkspaces, entry: Entry) -> tuple[Workspace, ...]:
        return tuple(self._tenancy.shown(row) for row in self._rows.list(entry.principal.id))

    @handles(OpenWorkspace)
    async def open(self, action: OpenWorkspace, entry: Entry) -> Workspace:
        _validate.check_workspace(action)
        row = await self._opened(action, entry)
        entry.done({"workspace": row.id, "commit": row.workspace.commit})
        return self._tenancy.shown(row)

    @handles(PinWorkspace)
    async def pin(self, action: PinWorkspace, entry: Entry) -> Workspace:
        _validate.check_pin(action.seconds)
        row = self.find(action.workspace, entry.principal.id)
        until = self._clock.wall() + action.seconds if action.seconds else None
        self._rows.pin(row.id, until)
        return self._tenancy.shown(replace(row, workspace=replace(row.workspace, pinned_until=until)))

    @handles(InspectWorkspace)
    async def status(self, action: InspectWorkspace, entry: Entry) -> WorkspaceStatus:
        row = self.find(action.workspace, entry.principal.id)
        async with self._lanes.shared(row.id):  # waits until it is made, evicted or restored
            row = self.find(row.id, entry.principal.id)
        status = await self.evictions.status(row, entry)
        return replace(status, workspace=self._tenancy.shown(row))

    @handles(DeleteWorkspace)
    async def delete(self, action: DeleteWorkspace, entry: Entry) -> None:
        row = self.find(action.workspace, entry.principal.id)
        id, what = row.id, f"delete the workspace {row.workspace.name} ({row.id})"
        await self._policies.ask("delete", action, entry, about=id, workspace=id, what=what)
        async with self._lanes.exclusive(id):
            row = self.find(id, entry.principal.id)
            check_epoch(row.workspace, action.epoch)
            await self._tenancy.free(row)
            if not action.discard:
                _refuse_loss(row, await self.evictions.status(row, entry))
            removal = self.evictions.remove(self._rows.settle(row, WorkspaceState.DELETING))
            await self._tasks.complete(removal, name=f"workspace {id}: delete")

    def find(self, reference: str, owner: str) -> WorkspaceRow:
        """By id, name, or unique prefix of an id. NotFound, InvalidArgument."""
        found = self._rows.find(owner, reference)
        return the_one(found, "workspace", reference, hint="`paddock workspaces` lists them")

    @asynccontextmanager
    async def holding(self, reference: str, owner: str) -> AsyncGenerator[WorkspaceTree]:
        """Hold the lane of a workspace, with its files in the pool, for the sandbox that will have it next. The one
        that had it last is dead, or `take` will say that it isn't. NotFound, InvalidArgument."""
        id = self.find(reference, owner).id
        async with self._lanes.exclusive(id):
            row = await self.evictions.laid_out(id, None) or self.find(reference, owner)
            await self._tenancy.occupant(row)
            yield _tree(row, row.workspace.epoch + 1)

    async def begun(self, reference: str, owner: str, entry: Entry) -> Begun:
        """What it began with, and its tree, laid out. NotFound, InvalidArgument."""
        id = self.find(reference, owner).id
        async with self._lanes.exclusive(id):
            row = await self.evictions.laid_out(id, entry) or self.find(reference, owner)
        return Begun(self._tenancy.shown(row), _tree(row, row.workspace.epoch))

    def take(self, row: Row) -> None:
        self._tenancy.take(row)

    async def _opened(self, action: OpenWorkspace, entry: Entry) -> WorkspaceRow:
        owner = entry.principal.id
        async with self._lanes.exclusive(f"workspace {action.name} of {owner}"):
            row = self._rows.named(owner, action.name)
            if row is not None:
                self._check_same(row.workspace, action, entry.principal)
                async with self._lanes.exclusive(row.id):
                    row = await self.evictions.laid_out(row.id, entry)
            if row is None:
                return await self._make(action, entry)
            self._rows.touch(row.id, self._clock.wall())
            return row

    async def _make(self, action: OpenWorkspace, entry: Entry) -> WorkspaceRow:
        found = await self._commit(action, entry.principal)
        now = self._clock.wall()
        workspace = Workspace(
            id=WorkspaceId(mint(Noun.WORKSPACE)),
            name=action.name,
            owner=entry.principal.id,
            state=WorkspaceState.MAKING,
            disk_mib=action.disk_mib or DISK_MIB,
            created_at=now,
            used_at=now,
            repository=found and found.url,
            branch=found and found.branch,
            commit=found and found.commit,
            observed_at=found and found.observed_at,
            submodules=action.submodules,
        )
        row = WorkspaceRow(workspace, repository=found and found.repository)
        async with self._lanes.exclusive(row.id):
            self._rows.add(row)
            try:
                return self._rows.settle(await self.evictions.begin(row, entry), WorkspaceState.READY)
            except BaseException:
                await self.evictions.remove(row)
                raise

    async def _commit(self, action: OpenWorkspace, principal: Principal) -> Acquired | None:
        """What a new workspace begins with, here by now; `branch` is what it will be on."""
        if action.url is None:
            return None
        ref = action.branch if action.ref is None else action.ref
        found = await self._shelf.repositories.acquire(action.url, ref, action.max_age_seconds, principal)
        return replace(found, branch=action.branch or found.branch or action.name)

    def _check_same(self, workspace: Workspace, action: OpenWorkspace, principal: Principal) -> None:
        """InvalidState if it is there and is not what is asked for: its files are not thrown away for others."""
        url = None
        if action.url is not None:  # as repositories are recorded, without a credential
            from paddock.storage.repositories import parse

            url = parse(action.url, local=principal.id.startswith("local:"))[0].url
        if url is not None and f"{url}.git" == workspace.repository:
            url = workspace.repository  # its server knows it by that name only
        for field, asked, has in (
            ("repository", url, workspace.repository),
            ("branch", action.branch, workspace.branch),
            ("disk_mib", action.disk_mib, workspace.disk_mib),
            ("submodules", True if action.submodules and workspace.unfetched else None, workspace.submodules),
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


def _tree(row: WorkspaceRow, epoch: int) -> WorkspaceTree:
    return WorkspaceTree(
        tree=row.id,
        layers=row.layers,
        repository=row.repository,
        disk_mib=row.workspace.disk_mib,
        epoch=epoch,
        workspace=row.id,
    )
