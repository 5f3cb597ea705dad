"""Open, find, list, inspect, pin and delete workspaces; say which sandbox may write one, and evict them from the pool.

A workspace is evicted only after its work is on disk elsewhere. Utility sandboxes read and write its files.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from functools import partial

from paddock import model
from paddock.daemon.access.policies import Policies
from paddock.daemon.context import Component, Context, Operation, handles
from paddock.daemon.sandboxes import validate
from paddock.daemon.sandboxes.running import RunningSandboxes, end
from paddock.daemon.store.candidates import Candidate, measured
from paddock.daemon.store.database import Row, WorkspaceRow, WorkspaceStore, exactly_one, has_ended
from paddock.daemon.store.results import ResultStore
from paddock.daemon.store.trees import WorkspaceTree
from paddock.daemon.tasks import in_thread
from paddock.errors import InternalError, InvalidStateError, PaddockError
from paddock.model import Acquired, Principal, Workspace, WorkspaceState, WorkspaceStatus, mint, replace
from paddock.storage.pool.kept import KeptArchives
from paddock.storage.pool.trees import sync_tree
from paddock.supervisor.layout import KEPT

from ._archive import Archiver
from ._bases import Base
from .repositories import Repositories

DISK_MIB = 10_240
MOST_PIN_SECONDS = 366 * 86_400


class Workspaces(Component):
    def __init__(
        self, context: Context, running: RunningSandboxes, repositories: Repositories, policies: Policies
    ) -> None:
        super().__init__(context)
        self._running, self._policies, self._repositories = running, policies, repositories
        self._rows = WorkspaceStore(self._store)
        self._archiver = Archiver(
            repositories.utilities, KeptArchives(self._state_dir / KEPT), ResultStore(self._store)
        )

    @handles(model.GetWorkspace)
    async def get(self, action: model.GetWorkspace, op: Operation) -> Workspace:
        return self._view(self.find(action.workspace, op.principal.id))

    @handles(model.ListWorkspaces)
    async def list(self, action: model.ListWorkspaces, op: Operation) -> tuple[Workspace, ...]:
        return tuple(self._view(row) for row in self._rows.list(op.principal.id))

    @handles(model.OpenWorkspace)
    async def open(self, action: model.OpenWorkspace, op: Operation) -> Workspace:
        validate.check_workspace(action)
        row = await self._opened(action, op)
        op.done({"workspace": row.id, "commit": row.workspace.commit})
        return self._view(row)

    @handles(model.PinWorkspace)
    async def pin(self, action: model.PinWorkspace, op: Operation) -> Workspace:
        validate.check_range("seconds", action.seconds, 0, MOST_PIN_SECONDS, " (a year)")
        row = self.find(action.workspace, op.principal.id)
        until = self._clock.wall() + action.seconds if action.seconds else None
        self._rows.pin(row.id, until)
        return self._view(replace(row, workspace=replace(row.workspace, pinned_until=until)))

    @handles(model.InspectWorkspace)
    async def status(self, action: model.InspectWorkspace, op: Operation) -> WorkspaceStatus:
        row = self.find(action.workspace, op.principal.id)
        async with self._lanes.shared(row.id):  # waits until it is made, evicted or restored
            row = self.find(row.id, op.principal.id)
        status = await self._status(row, op)
        return replace(status, workspace=self._view(row))

    @handles(model.DeleteWorkspace)
    async def delete(self, action: model.DeleteWorkspace, op: Operation) -> None:
        row = self.find(action.workspace, op.principal.id)
        id, what = row.id, f"delete the workspace {row.workspace.name} ({row.id})"
        await self._policies.ask("delete", action, op, about=id, workspace=id, what=what)
        async with self._lanes.exclusive(id):
            row = self.find(id, op.principal.id)
            check_epoch(row.workspace, action.epoch)
            await self._require_free(row)
            if not action.discard:
                _refuse_loss(row, await self._status(row, op))
            removal = self._remove(self._rows.set_state(row, WorkspaceState.DELETING))
            await self._tasks.complete(removal, name=f"workspace {id}: delete")

    def find(self, reference: str, owner: str) -> WorkspaceRow:
        """By id, name, or unique prefix of an id. NotFoundError, InvalidArgument."""
        found = self._rows.find(owner, reference)
        return exactly_one(found, "workspace", reference, hint="`paddock workspace ls` lists them")

    @asynccontextmanager
    async def reserve(self, reference: str, owner: str) -> AsyncGenerator[WorkspaceTree]:
        """Hold the lane of a workspace, with its files in the pool, for the sandbox that will have it next. The one
        that had it last is dead, or `take` will say that it isn't. NotFoundError, InvalidArgument."""
        id = self.find(reference, owner).id
        async with self._lanes.exclusive(id):
            row = await self._checked_out(id, None) or self.find(reference, owner)
            await self._mounted_by(row)
            yield _tree(row, row.workspace.epoch + 1)

    async def opened(self, reference: str, owner: str, op: Operation) -> tuple[Workspace, WorkspaceTree]:
        """Return what it began with, and its tree in the pool. Raises NotFoundError, InvalidArgumentError."""
        id = self.find(reference, owner).id
        async with self._lanes.exclusive(id):
            row = await self._checked_out(id, op) or self.find(reference, owner)
        return self._view(row), _tree(row, row.workspace.epoch)

    async def _opened(self, action: model.OpenWorkspace, op: Operation) -> WorkspaceRow:
        owner = op.principal.id
        async with self._lanes.exclusive(f"workspace {action.name} of {owner}"):
            row = self._rows.named(owner, action.name)
            if row is not None:
                self._check_same(row.workspace, action, op.principal)
                async with self._lanes.exclusive(row.id):
                    row = await self._checked_out(row.id, op)
            if row is None:
                return await self._make(action, op)
            self._rows.touch(row.id, self._clock.wall())
            return row

    async def _make(self, action: model.OpenWorkspace, op: Operation) -> WorkspaceRow:
        found = await self._commit(action, op.principal)
        now = self._clock.wall()
        workspace = Workspace(
            id=model.WorkspaceId(mint(model.IdPrefix.WORKSPACE)),
            name=action.name,
            owner=op.principal.id,
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
        row = WorkspaceRow(workspace, cache=found and found.repository)
        async with self._lanes.exclusive(row.id):
            self._rows.add(row)
            try:
                return self._rows.set_state(await self._begin(row, op), WorkspaceState.READY)
            except BaseException:
                await self._remove(row)
                raise

    async def _commit(self, action: model.OpenWorkspace, principal: Principal) -> Acquired | None:
        """Return what a new workspace begins with, here by now; `branch` is what it will be on."""
        if action.url is None:
            return None
        ref = action.branch if action.ref is None else action.ref
        found = await self._repositories.acquire(action.url, ref, action.max_age_seconds, principal)
        return replace(found, branch=action.branch or found.branch or action.name)

    def _check_same(self, workspace: Workspace, action: model.OpenWorkspace, principal: Principal) -> None:
        """Raise InvalidStateError if it exists and differs from the request: its files are not deleted for that."""
        url = None
        if action.url is not None:  # as repositories are recorded, without a credential
            from paddock.storage.git import parse

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
                raise InvalidStateError(
                    f"workspace {workspace.name!r} has {field} {has!r}, not {asked!r}",
                    hint="take another name for the task: --task NAME",
                    workspace=workspace.id,
                )

    def assign(self, row: Row) -> None:
        """In the transaction that records the sandbox: it has its workspace from now on, until the row has ended.
        InvalidStateError: another one lives over it. The caller holds the lane of the workspace alone."""
        assert row.workspace is not None
        found = self._rows.get(row.workspace.tree)
        assert found is not None
        if self._living(found):
            raise self._in_use(found)
        self._rows.give(found.id, row.id, self._clock.wall())

    async def _require_free(self, row: WorkspaceRow) -> None:
        """InvalidStateError while a sandbox lives over it."""
        if await self._mounted_by(row):
            raise self._in_use(row)

    async def _mounted_by(self, row: WorkspaceRow) -> Row | None:
        """Return the sandbox that has it. The backend confirms recorded deaths: two writers would destroy the tree."""
        sandbox = self._last(row)
        if sandbox is not None and not has_ended(sandbox):
            sandbox = await self._running.check(sandbox)  # it may have died unnoticed
        if sandbox is None or not has_ended(sandbox):
            return sandbox
        backend = self._backends.named(sandbox.sandbox.backend)
        if (instance := await backend.adopt(sandbox.id)) is not None:  # else its end may still have to be recorded
            await end(instance)
            await backend.forget(sandbox.id)
        return None

    def _living(self, row: WorkspaceRow) -> Row | None:
        """Return the sandbox that has it, by the records."""
        sandbox = self._last(row)
        return None if sandbox is None or has_ended(sandbox) else sandbox

    def _last_used(self, row: WorkspaceRow) -> float:
        """Return when its last sandbox ended, or it was opened, in seconds since the epoch."""
        sandbox = self._last(row)
        ended = None if sandbox is None else sandbox.sandbox.ended_at
        return max(row.workspace.used_at, ended or 0.0)

    def _view(self, row: WorkspaceRow) -> Workspace:
        """As callers see it: a sandbox that is dead has nothing any more."""
        return row.workspace if self._living(row) else replace(row.workspace, sandbox=None)

    def _in_use(self, row: WorkspaceRow) -> InvalidStateError:
        sandbox, name = self._living(row), row.workspace.name
        if sandbox is None:
            return InvalidStateError(f"workspace {name!r} is free by now", hint="try again")
        return InvalidStateError(
            f"sandbox {sandbox.id} has workspace {name!r}, and only one may write it",
            hint=f"use that one, or end it: paddock kill {sandbox.sandbox.spec.name or sandbox.id}",
            sandbox=sandbox.id,
        )

    def _last(self, row: WorkspaceRow) -> Row | None:
        id = row.workspace.sandbox
        return None if id is None else self._store.get(id)

    async def _status(self, row: WorkspaceRow, op: Operation | None) -> WorkspaceStatus:
        """Return its status; for an evicted one the status then, because nothing can have changed."""
        return row.kept.status if row.kept is not None else await self._archiver.status(row, op)

    async def _begin(self, row: WorkspaceRow, op: Operation | None) -> WorkspaceRow:
        """Make the tree as it was before the first write."""
        limit = row.workspace.disk_mib << 20
        if row.cache is None:
            await in_thread(self._pool().create, row.id, limit_bytes=limit)
            return row
        acquired = first_commit(row.workspace, row.cache)
        if acquired is None or acquired.branch is None:
            raise InternalError(f"the row of workspace {row.id} does not say what it began with")
        from paddock.storage.git import pins

        # Before anything lies over it: from here on neither the commit nor the repository goes.
        like = self._repositories.bases.ready(acquired, acquired.branch, submodules=row.workspace.submodules)
        await in_thread(pins.pin, self._repositories.directory / row.cache, row.id, acquired.commit, like=like)
        base = await self._base(row, acquired, op)
        layers = await self._repositories.bases.derive(base, row.id, limit_bytes=limit)
        workspace = replace(row.workspace, unfetched=base.unfetched)
        return replace(row, workspace=workspace, base=base.id, layers=layers)

    async def _base(self, row: WorkspaceRow, acquired: Acquired, op: Operation | None) -> Base:
        """Return a base and record in the same step that this workspace needs it: no await comes between."""
        branch, submodules = acquired.branch or "", row.workspace.submodules
        base = await self._repositories.bases.get(acquired, branch, op, submodules=submodules)
        while self._repositories.bases.ready(acquired, branch, submodules=submodules) != base.id:  # collected meanwhile
            base = await self._repositories.bases.get(acquired, branch, op, submodules=submodules)
        self._rows.set_layers(row.id, (base.id,))
        return base

    async def _checked_out(self, id: str, op: Operation | None) -> WorkspaceRow | None:
        """Return it with its files in the pool; None if it is gone. The caller holds its lane alone."""
        row = self._rows.get(id)
        if row is None or row.state is WorkspaceState.READY:
            return row
        if row.kept is None:  # its deletion failed half-way
            return await self._remove(row)
        restoring = self._rows.set_state(row, WorkspaceState.RESTORING)
        try:
            await in_thread(self._pool().delete, row.id)  # a daemon that died while it evicted it may have left it
            laid = await self._begin(restoring, op)
            await self._archiver.extract(laid, op)
            await asyncio.to_thread(sync_tree, self._pool(), row.id)
            ready = self._rows.set_state(replace(laid, kept=None), WorkspaceState.READY)
        except BaseException:
            await in_thread(self._pool().delete, row.id)
            self._rows.set_state(row, WorkspaceState.EVICTED)
            raise
        await in_thread(self._archiver.archives.remove, row.id)
        return ready

    async def evict(self, id: str) -> None:
        """Evict it: first its work goes to disk outside of the pool, then its tree is deleted. Raises InvalidStateError
        if it may not go. On any other error it stays."""
        async with self._lanes.exclusive(id):
            row = self._rows.get(id)
            if row is None or row.state is WorkspaceState.EVICTED:
                return
            await self._require_free(row)
            refusal = self._refusal(row)
            if refusal is not None:
                raise InvalidStateError(f"workspace {row.workspace.name!r} stays: {refusal}", workspace=row.id)
            evicting = self._rows.set_state(row, WorkspaceState.EVICTING)
            try:
                kept = await self._archiver.archive(evicting)
            except BaseException:
                self._rows.set_state(row, WorkspaceState.READY)
                await in_thread(self._archiver.archives.remove, id)
                raise
            self._rows.set_state(replace(evicting, kept=kept, base=None, layers=()), WorkspaceState.EVICTED)
            await in_thread(self._pool().delete, id)

    async def _remove(self, row: WorkspaceRow) -> None:
        """Delete all of it. The row goes last: as long as there is one, the next daemon sees to the rest."""
        await in_thread(self._delete, row)
        self._rows.remove(row.id)

    def _delete(self, row: WorkspaceRow) -> None:
        self._pool().delete(row.id)
        self._archiver.archives.remove(row.id)
        if row.cache is not None:
            from paddock.storage.git import pins

            pins.unpin(self._repositories.directory / row.cache, row.id)

    async def recover(self) -> None:
        """Finish or undo what the daemon before this one was doing, and delete archives that no row knows."""
        await self.put_right()
        for name in self._archiver.archives.names():
            row = self._rows.get(name)
            if row is None or row.kept is None:
                self._archiver.archives.remove(name)

    async def put_right(self) -> None:
        """Complete or undo interrupted work: its daemon died, or its disk was full."""
        for id in [row.id for row in self._rows.list()]:
            if self._lanes.is_free(id):
                async with self._lanes.exclusive(id):
                    if (row := self._rows.get(id)) is not None:
                        await self._put_right(row)

    async def _put_right(self, row: WorkspaceRow) -> None:
        match row.state:
            case WorkspaceState.READY | WorkspaceState.EVICTED:
                return
            case WorkspaceState.MAKING | WorkspaceState.DELETING:
                await self._remove(row)
            case WorkspaceState.RESTORING:
                await in_thread(self._pool().delete, row.id)
                self._rows.set_state(replace(row, base=None, layers=()), WorkspaceState.EVICTED)
            case WorkspaceState.EVICTING:
                self._rows.set_state(row, WorkspaceState.READY)
        self._audit.event("workspace.unfinished", workspace=row.id, message=f"it was {row.state.value}; put right")

    async def candidates(self) -> Sequence[Candidate]:
        """Return all in the pool, in the order of eviction: clean ones, then those with work, which is kept; in each
        group the least recently used first. Last, those that may not go, and why."""
        pool = self._pool()
        # A pool with room evicts none; then no utility sandbox is opened to inspect them.
        full = pool.config.is_full(await asyncio.to_thread(pool.space))
        found: list[tuple[bool, bool, float, Candidate]] = []
        for row in self._rows.list():
            if row.state is WorkspaceState.EVICTED or (size := await measured(pool, row.id)) is None:
                continue
            used = self._last_used(row)
            why, refusal, clean = f"not used for {_span(self._clock.wall() - used)}", self._refusal(row), False
            if full and refusal is None:
                try:
                    status = await self._archiver.status(row, None)
                except PaddockError as error:
                    refusal = f"what is in it cannot be made out: {error.message}"
                else:
                    clean = status.clean
                    why += ", nothing is only here" if clean else f", keeps {status.only_here}"
            why = f"workspace {row.workspace.name}: {why}"
            one = Candidate(row.id, "workspace", why, size, partial(self._take, why), refusal, only_when_full=True)
            found.append((refusal is not None, not clean, used, one))
        return [one for *_, one in sorted(found, key=lambda each: each[:3])]

    async def _take(self, why: str, id: str) -> None:
        await self.evict(id)
        self._audit.event("workspace.evicted", workspace=id, message=why)

    def _refusal(self, row: WorkspaceRow) -> str | None:
        """Return why it may not be evicted, if so."""
        sandbox = self._living(row)
        if sandbox is not None:
            return f"sandbox {sandbox.id} has it"
        if row.state is not WorkspaceState.READY:
            return f"it is {row.state.value}"
        left = (row.workspace.pinned_until or 0.0) - self._clock.wall()
        return f"it is pinned for {_span(left)}" if left > 0 else None


def check_epoch(workspace: Workspace, epoch: int | None) -> None:
    """Raise InvalidStateError if the given epoch has passed: earlier facts about the workspace may be wrong."""
    if epoch is not None and epoch != workspace.epoch:
        raise InvalidStateError(
            f"workspace {workspace.name!r} is in epoch {workspace.epoch}, not {epoch}: another sandbox has had it"
            " since",
            hint=f"paddock status {workspace.name}",
            epoch=workspace.epoch,
        )


def _refuse_loss(row: WorkspaceRow, status: WorkspaceStatus) -> None:
    if not status.clean:
        name, some = row.workspace.name, ": " + ", ".join(status.paths[:5]) if status.paths else ""
        raise InvalidStateError(
            f"workspace {name!r} has what is nowhere else: {status.only_here}{some}",
            hint=f"paddock status {name}; to lose it: paddock workspace rm {name} --discard",
            workspace=row.id,
        )


def _tree(row: WorkspaceRow, epoch: int) -> WorkspaceTree:
    return WorkspaceTree(
        tree=row.id,
        layers=row.layers,
        repository=row.cache,
        disk_mib=row.workspace.disk_mib,
        epoch=epoch,
        workspace=row.id,
    )


def _span(seconds: float) -> str:
    hours = seconds / 3600
    return f"{hours:.0f} h" if hours >= 2 else f"{max(0.0, seconds) / 60:.0f} min"


def first_commit(workspace: Workspace, cache: str | None) -> Acquired | None:
    """Return what it began with, whose objects are in the repository `cache`. None: it is of no repository."""
    if cache is None or workspace.repository is None or workspace.commit is None:
        return None
    return Acquired(
        repository=model.RepositoryId(cache),
        url=workspace.repository,
        commit=workspace.commit,
        ref=None,
        branch=workspace.branch,
        observed_at=workspace.observed_at or 0.0,
    )
