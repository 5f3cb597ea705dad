"""Rollback: the trees of a snapshot take the place of a sandbox's, and it is made again under its id.

Until all of them lie beside its own, whole, nothing of the sandbox is touched: what fails before leaves it as it was.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import NamedTuple

import msgspec

from paddock.backends._base import Backend, Instance
from paddock.errors import InvalidState, PaddockError, ResourceExhausted, SandboxDied
from paddock.model import RollbackSandbox, Sandbox, State
from paddock.storage._base import Pool

from . import _copies
from ._conduct import protected
from ._copies import Copy
from ._egress import Egress
from ._gate import Entry
from ._lifecycle import Lifecycle
from ._live import Held, Live
from ._making import Birth
from ._nested import Nested
from ._policies import Policies
from ._providers import Backends
from ._remains import has_ended, words
from ._secret_leases import Leases
from ._snapshot_store import SnapshotRow
from ._snapshots import Snapshots
from ._store import Row, Store
from ._tasks import Tasks
from ._workspace_tree import WorkspaceTree, beside, own_trees


class Beside(NamedTuple):
    """What is copied, and the tree whose place it is to take."""

    copy: Copy
    place: str


class Rollback:
    def __init__(
        self,
        *,
        store: Store,
        lifecycle: Lifecycle,
        live: Live,
        backends: Backends,
        pool: Callable[[], Pool],
        snapshots: Snapshots,
        tasks: Tasks,
        egress: Egress,
        policies: Policies,
        leases: Leases,
    ) -> None:
        self._egress, self._policies, self._leases = egress, policies, leases
        self._store, self._lifecycle, self._live, self._backends = store, lifecycle, live, backends
        self._pool, self._snapshots, self._tasks = pool, snapshots, tasks

    async def perform(self, action: RollbackSandbox, row: Row, held: Held, entry: Entry) -> Sandbox:
        held.backend.capabilities.require("freeze", held.backend.name)
        snapshot = self._snapshots.find(action.snapshot, entry.principal.id)
        self._check(row, held, snapshot)
        # Once begun it goes on, whatever becomes of the caller.
        work = self._rollback(row, held, snapshot)
        sandbox = await self._tasks.finish(work, name=f"undo sandbox {row.id}: rollback")
        entry.done({"snapshot": snapshot.id})
        return sandbox

    async def resume(self, row: Row) -> None:
        """Does the rest of a rollback whose service died. ResourceExhausted: it stays as it is, until there is room."""
        backend = self._backends.named(row.sandbox.backend)
        # What the dead service has made, or will be told to have made, is none of ours.
        again, holder = row.incarnation + 1, self._live.holder
        row = self._lifecycle.move(row, State.RESTORING, restoring=row.restoring, holder=holder, incarnation=again)
        with self._live.making(row.id):
            instance = await backend.adopt(row.id)
            try:
                trees = await self._copy_the_rest(row)
            except PaddockError as error:
                if instance is not None:
                    await instance.aclose()
                    await self._stay(row)
                elif not isinstance(error, ResourceExhausted):
                    await self._failed(row, error)
                raise
            if instance is not None:
                await _end(instance)
            await self._lay(row, backend, self._snapshot_of(row), trees)

    async def _rollback(self, row: Row, held: Held, snapshot: SnapshotRow) -> Sandbox:
        with self._live.making(row.id):
            row = self._lifecycle.move(row, State.RESTORING, restoring=snapshot.id, holder=self._live.holder)
            try:
                trees = self._trees(row, snapshot)
                await asyncio.to_thread(_copies.make, self._pool(), [tree.copy for tree in trees], anew=True)
            except BaseException:
                await self._stay(row)
                raise
            held.dying = True
            await _end(held.instance)
            await self._live.release(row.id)
            return (await self._lay(row, held.backend, snapshot, trees)).sandbox

    def _trees(self, row: Row, snapshot: SnapshotRow) -> tuple[Beside, ...]:
        pool = self._pool()
        limit = row.sandbox.spec.limits.disk_mib << 20
        own = Beside(Copy(snapshot.id, beside(row.id), limit), row.id)
        if row.workspace is None or snapshot.workspace is None:
            return (own,)
        limit_bytes = pool.usage(snapshot.workspace.tree).limit_bytes
        copy = Copy(snapshot.workspace.tree, beside(row.id, workspace=True), limit_bytes)
        return own, Beside(copy, row.workspace.tree)

    async def _copy_the_rest(self, row: Row) -> tuple[Beside, ...]:
        """Whatever the dead service had come to: what is beside may be of an earlier rollback, unless its place is
        empty."""
        trees = self._trees(row, self._snapshot_of(row))
        pool = self._pool()
        names = set(pool.names())
        missing = [tree.copy for tree in trees if tree.place in names or tree.copy.name not in names]
        await asyncio.to_thread(_copies.make, pool, missing, anew=True)
        return trees

    def _snapshot_of(self, row: Row) -> SnapshotRow:
        snapshot = None if row.restoring is None else self._snapshots.get(row.restoring)
        if snapshot is None:
            raise InvalidState(f"the snapshot that {row.id} was being taken back to is gone", sandbox=row.id)
        return snapshot

    async def _stay(self, row: Row) -> None:
        """It is as before: it runs, or stands still."""
        _copies.discard(self._pool(), _besides(row))
        with suppress(InvalidState):  # killed meanwhile
            await self._live.check(self._lifecycle.move(row, State.RUNNING), paused=True)

    async def _lay(self, row: Row, backend: Backend, snapshot: SnapshotRow, trees: Sequence[Beside]) -> Row:
        """The trees of a dead sandbox become those of the snapshot, and it lives again."""
        next = msgspec.structs.replace(row, incarnation=row.incarnation + 1)
        try:
            await backend.forget(row.id)
            await asyncio.to_thread(_put_in_place, self._pool(), trees)
            plan = self._leases.furnished((await self._birth(next, snapshot, backend)).plan())
            instance = await backend.create(plan)
            try:
                if row.sandbox.spec.nested:
                    await Nested.furnish(instance)
                await self._reopen(row, next)
            except BaseException:
                await _end(instance)
                raise
        except BaseException as error:
            await self._failed(row, error)
            raise
        try:
            running = self._lifecycle.move(row, State.RUNNING, incarnation=next.incarnation)
        except InvalidState:  # killed meanwhile
            await _end(instance)
            await backend.forget(row.id)
            _copies.discard(self._pool(), own_trees(row))
            raise
        self._live.admit(running, backend, instance)
        return running

    async def _birth(self, next: Row, snapshot: SnapshotRow, backend: Backend) -> Birth:
        revision = (self._store.get(next.id) or next).sandbox.policy
        policy = None if revision is None else await self._policies.of(revision)
        protect = () if policy is None else protected(policy.document, snapshot.template)
        return Birth(next, snapshot.template, backend, policy, protect)

    async def _reopen(self, row: Row, next: Row) -> None:
        """It keeps the policy that it has now: a snapshot brings none with it."""
        now = self._store.get(row.id) or row
        revision = now.sandbox.policy
        if revision is not None:
            await self._egress.close(row)
            await self._egress.open(next, await self._policies.of(revision))

    async def _failed(self, row: Row, error: BaseException) -> None:
        now = self._store.get(row.id)
        if now is not None and not has_ended(now):
            self._lifecycle.move(row, State.FAILED, reason=f"rollback failed: {words(error)}")
        _copies.discard(self._pool(), (*own_trees(row), *_besides(row)))

    def _check(self, row: Row, held: Held, snapshot: SnapshotRow) -> None:
        """InvalidState if its files are not ones that this sandbox can have."""
        if snapshot.template != held.instance.template:
            raise InvalidState(
                f"snapshot {snapshot.id} was made on another version of template {snapshot.template.name!r}"
                f" than {row.id} runs on",
                hint="make a sandbox of the snapshot instead: Sandbox.create(snapshot=...)",
            )
        if snapshot.snapshot.spec.mounts != row.sandbox.spec.mounts:
            raise InvalidState(f"snapshot {snapshot.id} has other mounts than {row.id}")
        theirs, own = snapshot.workspace, row.workspace
        if (theirs and (theirs.layers, theirs.repository)) != (own and (own.layers, own.repository)):
            ours = "another" if theirs and own else _kind(own)
            raise InvalidState(
                f"snapshot {snapshot.id} has {_kind(theirs)}, and {row.id} has {ours}",
                hint="make a sandbox of the snapshot instead: Sandbox.create(snapshot=...)",
            )
        self._snapshots.check_layers(snapshot)


def _besides(row: Row) -> tuple[str, ...]:
    return beside(row.id), beside(row.id, workspace=True)


def _kind(workspace: WorkspaceTree | None) -> str:
    return "no workspace" if workspace is None else "a workspace"


def _put_in_place(pool: Pool, trees: Sequence[Beside]) -> None:
    for tree in trees:
        pool.replace(tree.copy.name, tree.place)


async def _end(instance: Instance) -> None:
    with suppress(SandboxDied):
        await instance.kill()
    await instance.aclose()
