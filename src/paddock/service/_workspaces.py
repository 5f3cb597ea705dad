"""Workspaces: open, find, list, look, pin, delete."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from paddock.errors import InvalidArgument, InvalidState, NotFound
from paddock.keeper.layout import KEPT, REPOSITORIES
from paddock.model import (
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
from paddock.storage._base import Pool
from paddock.storage._kept import KeptArchives

from . import _validate
from ._bases import Bases
from ._clock import Clock
from ._evictions import Evictions
from ._gate import Entry
from ._grounds import Grounds
from ._keeping import Keeping
from ._lane import Lanes
from ._live import Live
from ._needs import Need
from ._result_source import Begun
from ._store import Row, Store
from ._tenancy import Tenancy
from ._workshop import Workshops
from ._workspace_store import WorkspaceRow, WorkspaceStore
from ._workspace_tree import WorkspaceTree

if TYPE_CHECKING:
    from ._repositories import Repositories

WorkspaceAction: TypeAlias = (
    OpenWorkspace | GetWorkspace | ListWorkspaces | InspectWorkspace | PinWorkspace | DeleteWorkspace
)
DISK_MIB = 10_240
_CANDIDATES = 8


class Workspaces:
    def __init__(
        self,
        *,
        store: WorkspaceStore,
        clock: Clock,
        lanes: Lanes,
        tenancy: Tenancy,
        grounds: Grounds,
        evictions: Evictions,
    ) -> None:
        self._store, self._clock = store, clock
        self._lanes, self._tenancy, self._grounds = lanes, tenancy, grounds
        self.evictions = evictions

    @classmethod
    def wired(
        cls,
        state_dir: Path,
        *,
        store: Store,
        live: Live,
        pool: Callable[[], Pool],
        clock: Clock,
        workshops: Workshops,
        bases: Bases,
        lanes: Lanes,
        repositories: Callable[[], Repositories],
    ) -> Workspaces:
        rows, archives = WorkspaceStore(store), KeptArchives(state_dir / KEPT)
        grounds = Grounds(state_dir / REPOSITORIES, store=rows, repositories=repositories, bases=bases, pool=pool)
        tenancy = Tenancy(rows=store, store=rows, live=live, clock=clock)
        evictions = Evictions(
            store=rows,
            pool=pool,
            clock=clock,
            lanes=lanes,
            tenancy=tenancy,
            keeping=Keeping(workshops, archives),
            grounds=grounds,
        )
        return cls(store=rows, clock=clock, lanes=lanes, tenancy=tenancy, grounds=grounds, evictions=evictions)

    async def perform(self, action: WorkspaceAction, entry: Entry) -> object:
        match action:
            case OpenWorkspace():
                return await self.open(action, entry)
            case GetWorkspace():
                return self._tenancy.shown(self.find(action.workspace, entry.principal.id))
            case ListWorkspaces():
                return tuple(self._tenancy.shown(row) for row in self._store.list(entry.principal.id))
            case InspectWorkspace():
                return await self.status(action, entry)
            case PinWorkspace():
                return self.pin(action, entry)
            case DeleteWorkspace():
                return await self.delete(action, entry)

    async def open(self, action: OpenWorkspace, entry: Entry) -> Workspace:
        _validate.check_workspace(action)
        row = await self._opened(action, entry)
        entry.done({"workspace": row.id, "commit": row.workspace.commit})
        return self._tenancy.shown(row)

    def pin(self, action: PinWorkspace, entry: Entry) -> Workspace:
        _validate.check_pin(action.seconds)
        row = self.find(action.workspace, entry.principal.id)
        until = self._clock.wall() + action.seconds if action.seconds else None
        self._store.pin(row.id, until)
        return self._tenancy.shown(replace(row, workspace=replace(row.workspace, pinned_until=until)))

    async def status(self, action: InspectWorkspace, entry: Entry) -> WorkspaceStatus:
        row = self.find(action.workspace, entry.principal.id)
        async with self._lanes.shared(row.id):  # waits until it is made, evicted or restored
            row = self.find(row.id, entry.principal.id)
        status = await self.evictions.status(row, entry)
        return replace(status, workspace=self._tenancy.shown(row))

    async def delete(self, action: DeleteWorkspace, entry: Entry) -> None:
        id = self.find(action.workspace, entry.principal.id).id
        async with self._lanes.exclusive(id):
            row = self.find(id, entry.principal.id)
            self._tenancy.check_epoch(row, action.epoch)
            await self._tenancy.free(row)
            if not action.discard:
                _refuse_loss(row, await self.evictions.status(row, entry))
            await self.evictions.remove(self._store.settle(row, WorkspaceState.DELETING))

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

    def has_task(self, owner: str, name: str) -> bool:
        return self._store.named(owner, name) is not None

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
        space = self._tenancy.shown(row)
        return Begun(
            id=row.id,
            name=space.name,
            tree=_tree(row, space.epoch),
            url=space.repository,
            branch=space.branch,
            commit=space.commit,
            epoch=space.epoch,
            sandbox=space.sandbox,
        )

    def take(self, row: Row) -> None:
        self._tenancy.take(row)

    def needs(self) -> Iterable[Need]:
        """Of trees: those that are laid out or about to be, and what they lie over. Evicted ones need their repository
        as well."""
        for row in self._store.list():
            if row.repository is not None:
                yield Need(row.repository, row.id, f"the history of workspace {row.workspace.name} is there")
            if row.state is not WorkspaceState.EVICTED:
                yield Need(row.id, row.id, f"it is workspace {row.workspace.name}")
            for layer in row.layers:
                yield Need(layer, row.id, f"workspace {row.workspace.name} lies over it")

    def whole(self) -> Iterable[Need]:
        """Of trees that have to be there at this moment."""
        for row in self._store.list():
            if row.state is WorkspaceState.READY:
                for tree in (row.id, *row.layers):
                    yield Need(tree, row.id, f"workspace {row.workspace.name} is in it")

    async def _opened(self, action: OpenWorkspace, entry: Entry) -> WorkspaceRow:
        while True:
            row = self._store.named(entry.principal.id, action.name)
            if row is None:
                row = await self._make(action, entry)
                if row is not None:
                    return row
                continue  # another caller has just made it: that one is as good
            self._check_same(row.workspace, action, entry.principal)
            async with self._lanes.exclusive(row.id):
                row = await self.evictions.laid_out(row.id, entry)
            if row is not None:
                self._store.touch(row.id, self._clock.wall())
                return row

    async def _make(self, action: OpenWorkspace, entry: Entry) -> WorkspaceRow | None:
        """None: the name is taken by now."""
        found = await self._grounds.find(action, entry.principal)
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
            if not self._store.add(row):
                return None
            try:
                return self._store.settle(await self._grounds.begin(row, entry), WorkspaceState.READY)
            except BaseException:
                await self.evictions.remove(row)
                raise

    def _check_same(self, workspace: Workspace, action: OpenWorkspace, principal: Principal) -> None:
        """InvalidState if it is there and is not what is asked for: its files are not thrown away for others."""
        url = None if action.url is None else self._grounds.spelling(action.url, principal)
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
