"""Make sandboxes again under their id: rolled back to a snapshot, or woken from disk.

The trees of a snapshot replace those of the sandbox. Complete copies lie beside its own before anything changes, so an
earlier failure leaves it as it was. Hibernation is a snapshot that the sandbox has for itself; waking is the second
half of a rollback. The caller holds the lane of the sandbox alone. On its way to disk, or back, the row says
`restoring`. `paused` with a snapshot to wake from says that none of its processes runs. An interruption leaves
`restoring`, and the next holder of the lane completes it.
"""

from __future__ import annotations

import asyncio

from paddock.backends.base import Backend, Instance, Paused
from paddock.daemon.access.gateways import Gateways
from paddock.daemon.access.policies import Policies, protected
from paddock.daemon.access.secrets import SecretBindings
from paddock.daemon.context import Component, Context, Operation
from paddock.daemon.store.database import Row, SnapshotRow, has_ended
from paddock.daemon.store.trees import WorkspaceTree, staged_trees
from paddock.daemon.tasks import in_thread
from paddock.errors import (
    InvalidStateError,
    NotFoundError,
    PaddockError,
    ResourceExhaustedError,
    UnsupportedError,
    logged,
)
from paddock.model import RollbackSandbox, State, died, replace
from paddock.storage.pool.base import Pool

from . import _copies, _ttl
from ._copies import Copy
from ._request import CreateRequest
from .cleanup import message_of
from .instance import RunningSandbox
from .nested import install
from .running import RunningSandboxes, destroy, end
from .snapshots import Snapshots

HIBERNATED = "it sleeps on disk"


class Restore(Component):
    def __init__(
        self,
        context: Context,
        running: RunningSandboxes,
        snapshots: Snapshots,
        gateways: Gateways,
        policies: Policies,
        bindings: SecretBindings,
    ) -> None:
        super().__init__(context)
        self._running, self._snapshots, self._gateways = running, snapshots, gateways
        self._policies, self._bindings = policies, bindings

    async def rollback(self, action: RollbackSandbox, op: Operation, row: Row, running: RunningSandbox) -> Row:
        """Wake or restore it. The caller holds the lane of the sandbox alone, and goes on if its own caller leaves."""
        running.backend.capabilities.require("freeze", running.backend.name)
        snapshot = self._snapshots.find(action.snapshot, op.principal.id)
        await self._check(row, running, snapshot)
        row = self._store.move(row, State.RESTORING, restoring=snapshot.id)
        try:
            await in_thread(_copies.make, self._pool(), self._staged(row, snapshot), anew=True)
        except BaseException:
            await self._abandon(row)
            raise
        running.dying = True
        try:
            await end(running.instance)
        finally:
            await self._running.release(row.id)
        row = await self._take_back(row, running.backend, snapshot)
        op.done({"snapshot": snapshot.id})
        return row

    async def _finish(self, row: Row) -> Row:
        """Complete an interrupted rollback, and return the new row. The caller holds the lane of the sandbox alone. On
        ResourceExhaustedError it stays as it is, until there is room."""
        backend = self._backends.named(row.sandbox.backend)
        # An instance of an earlier attempt doesn't count.
        row = self._store.move(row, State.RESTORING, restoring=row.restoring, instance_id=row.instance_id + 1)
        instance = await backend.adopt(row.id)
        try:
            snapshot = await self._copy_the_rest(row)
        except PaddockError as error:
            if instance is not None:
                await instance.aclose()
                return await self._abandon(row)
            if not isinstance(error, ResourceExhaustedError):
                await self._failed(row, error)
            raise
        if instance is not None:
            await end(instance)
        return await self._take_back(row, backend, snapshot)

    async def _copy_the_rest(self, row: Row) -> SnapshotRow:
        """Complete the copies from any state of the dead daemon: those beside may belong to an earlier rollback, unless
        its place is empty."""
        snapshot, pool = self._snapshot_of(row), self._pool()
        names = set(await asyncio.to_thread(pool.names))
        staged = zip(self._staged(row, snapshot), _places(row), strict=False)
        missing = [copy for copy, place in staged if place in names or copy.name not in names]
        await in_thread(_copies.make, pool, missing, anew=True)
        return snapshot

    def _snapshot_of(self, row: Row) -> SnapshotRow:
        snapshot = None if row.restoring is None else self._snapshots.get(row.restoring)
        if snapshot is None:
            hint = f"paddock kill {row.id}"
            raise InvalidStateError(f"the snapshot that {row.id} comes back from is gone", hint=hint, sandbox=row.id)
        return snapshot

    async def _abandon(self, row: Row) -> Row:
        """Leave the sandbox as it was: it runs, is paused, or has died meanwhile."""
        await _copies.discard(self._pool(), staged_trees(row.id))
        return await self._running.check(self._store.move(row, State.RUNNING))

    async def _take_back(self, row: Row, backend: Backend, snapshot: SnapshotRow) -> Row:
        """Give a dead sandbox the trees of the snapshot, and start it again."""
        row = _ttl.running(row, self._clock)
        try:
            instance = await self._start(row, backend, snapshot)
        except Exception as error:  # a cancellation is a kill's, which records and buries
            await self._failed(row, error)
            raise
        return self._admit(row, backend, instance)

    async def _failed(self, row: Row, error: BaseException) -> None:
        self._store.move(row, State.FAILED, reason=f"rollback failed: {message_of(error)}")
        await _copies.discard(self._pool(), (*row.own_trees, *staged_trees(row.id)))

    def _staged(self, row: Row, snapshot: SnapshotRow) -> tuple[Copy, ...]:
        """Return the copies of the snapshot's trees that are to take the places of the sandbox's."""
        limit, own, (tree, of_workspace) = row.sandbox.spec.limits.disk_mib << 20, row.workspace, staged_trees(row.id)
        own = None if own is None else replace(own, tree=of_workspace)
        return _copies.plan(self._pool(), snapshot.id, tree, limit, snapshot.workspace, own)

    async def _start(self, row: Row, backend: Backend, snapshot: SnapshotRow) -> Instance:
        """Start `row`, which is dead, under its next number, with the copied trees in place of the old ones."""
        # A request of the last daemon may have taken effect since.
        await destroy(backend, row.id)
        _put_in_place(self._pool(), row)
        await _copies.discard(self._pool(), staged_trees(row.id))
        # It keeps the policy that it has now: a snapshot brings none with it.
        revision = (self._store.get(row.id) or row).sandbox.policy
        policy = None if revision is None else await self._policies.of(revision)
        protect = protected(policy, snapshot.made_from)
        next = replace(row, instance_id=row.instance_id + 1)
        request = CreateRequest(snapshot.made_from, backend, policy, protect)
        plan = request.plan(next, self._config.retention_seconds)
        instance = await backend.create(self._bindings.with_placeholders(plan))
        try:
            if row.sandbox.spec.nested:
                await install(instance)
            if policy is not None:
                self._gateways.forget(row)
                await self._gateways.open(next, policy)
        except BaseException:
            await end(instance)
            await backend.forget(row.id)
            raise
        return instance

    def _admit(self, row: Row, backend: Backend, instance: Instance) -> Row:
        """Record that it runs."""
        self._store.set_deadline(row)
        row = self._store.move(row, State.RUNNING, instance_id=row.instance_id + 1)
        self._running.admit(row, backend, instance)
        return row

    async def _check(self, row: Row, running: RunningSandbox, snapshot: SnapshotRow) -> None:
        """Raise InvalidStateError if this sandbox can't have the files of the snapshot."""
        if snapshot.made_from != running.instance.template:
            raise InvalidStateError(
                f"snapshot {snapshot.id} was made on another version of template {snapshot.made_from.name!r}"
                f" than {row.id} runs on",
                hint="make a sandbox of the snapshot instead: Sandbox.create(snapshot=...)",
            )
        if snapshot.snapshot.spec.mounts != row.sandbox.spec.mounts:
            raise InvalidStateError(f"snapshot {snapshot.id} has other mounts than {row.id}")
        self._snapshots.fits(snapshot, row.sandbox.spec, running.backend)
        theirs, own = snapshot.workspace, row.workspace
        if (theirs and (theirs.layers, theirs.repository)) != (own and (own.layers, own.repository)):
            ours = "another" if theirs and own else _kind(own)
            raise InvalidStateError(
                f"snapshot {snapshot.id} has {_kind(theirs)}, and {row.id} has {ours}",
                hint="make a sandbox of the snapshot instead: Sandbox.create(snapshot=...)",
            )
        await self._snapshots.check_layers(snapshot)

    async def hibernate(self, row: Row, running: RunningSandbox, *, force: bool = False) -> Row:
        """Write it to disk and end it. If this raises, it runs on: UnsupportedError, ResourceExhaustedError,
        InvalidStateError."""
        _check_sleep(row, running.backend)
        if not force:
            await self._running.refuse_while_busy(row, running)
        stood = running.instance.pause_clock.now
        taken: Row | None = None
        ended = False
        try:
            # It stays paused from the copy to its end, also if a process dies: no later work is lost.
            async with self._snapshots.hibernation(row, running) as (snapshot, times):
                taken = self._mark(row, snapshot.id, times)
                running.dying = True
                await end(running.instance)
                ended = True
        except (PaddockError, OSError):
            if taken is not None:
                await self._running.release(row.id)
            elif not stood:
                with logged("resume", row.id):  # else the next use resumes it
                    await self._running.resume(row, running)
            if not ended:
                raise
            # Else it is what could not be let go on any more.
        assert taken is not None
        await self._running.release(row.id)
        if row.sandbox.policy is not None:
            self._gateways.forget(row)
        return await self._mark_hibernated(taken, running.backend)

    async def complete(self, row: Row) -> Row:
        """Complete an interrupted restore or hibernation, and return the new row."""
        if row.state is not State.RESTORING:
            return row
        found = None if row.restoring is None else self._snapshots.get(row.restoring)
        if found is None or not found.for_hibernation:
            return await self._finish(row)
        taken, backend = self._mark(row, row.restoring), self._backends.named(row.sandbox.backend)
        await destroy(backend, row.id)
        await _copies.discard(self._pool(), staged_trees(taken.id))
        return await self._mark_hibernated(taken, backend)

    async def wake(self, row: Row, op: Operation) -> Row:
        """Wake a sandbox from its snapshot. Raises SandboxDiedError. Any other error leaves it hibernated."""
        row = await self.complete(row)
        if row.hibernated:
            row = await self._running.check(row)  # its time may be over
        if has_ended(row):
            raise died(row.sandbox)
        if not row.hibernated:
            return row
        try:
            return await self._wake(row, op.number)
        except PaddockError:
            row = await self._running.check(self._store.get(row.id) or row)
            if has_ended(row):  # its time was over by then
                raise died(row.sandbox) from None
            raise

    async def _wake(self, row: Row, number: int | None) -> Row:
        taken = self._mark(row, row.restoring)
        backend = self._backends.named(row.sandbox.backend)
        try:
            taken = _ttl.running(taken, self._clock)
            snapshot = self._snapshot_of(taken)
            await in_thread(_copies.make, self._pool(), self._staged(taken, snapshot), anew=True)
            instance = await self._start(taken, backend, snapshot)
        except BaseException:
            await _copies.discard(self._pool(), staged_trees(taken.id))
            if self._clock.boottime() >= taken.deadline:  # its TTL was over on the way
                self._store.set_deadline(taken)
            await self._mark_hibernated(taken, backend)
            raise
        woken = self._admit(taken, backend, instance)
        await self._snapshots.discard(snapshot.id)
        self._audit.event("sandbox.woken", sandbox=row.id, message="it slept on disk", decision=number)
        return woken

    def _mark(self, row: Row, snapshot: str | None, times: Paused | None = None) -> Row:
        """Mark it hibernated: after this, a daemon that dies leaves it so. Requests that saw its earlier state can't
        change it."""
        taken = self._store.move(row, State.RESTORING, restoring=snapshot, instance_id=row.instance_id + 1)
        stands = taken if times is None else _ttl.paused(taken, self._clock, times)
        stands = _ttl.hibernated(stands, self._clock, self._config.retention_seconds)
        if stands is not taken:
            self._store.set_deadline(stands)
        return stands

    async def _mark_hibernated(self, taken: Row, backend: Backend) -> Row:
        """Record that nothing of it runs any more."""
        await backend.forget(taken.id)
        return self._store.move(taken, State.PAUSED, restoring=taken.restoring, reason=HIBERNATED)


def _kind(workspace: WorkspaceTree | None) -> str:
    return "no workspace" if workspace is None else "a workspace"


def _places(row: Row) -> tuple[str, ...]:
    """Return the trees of a sandbox that a restore replaces, in the order of the copies."""
    return (row.id,) if row.workspace is None else (row.id, row.workspace.tree)


def _put_in_place(pool: Pool, row: Row) -> None:
    """Rename the copies into their places, and the old trees to theirs, which are then deleted."""
    for name, place in zip(staged_trees(row.id), _places(row), strict=False):
        try:
            pool.exchange(name, place)
        except NotFoundError:  # a daemon that died had emptied its place
            pool.rename(name, place)


def _check_sleep(row: Row, backend: Backend) -> None:
    if not backend.capabilities.memory:
        raise UnsupportedError(
            f"level {backend.level.value!r} cannot write the memory of a sandbox to disk",
            hint="pause it without `to_disk`: then it keeps its memory, and nothing in it runs",
            feature="memory",
        )
    if row.sandbox.spec.nested:
        raise UnsupportedError(
            f"sandbox {row.id} may have children, which would end with it", hint="pause it without `to_disk`"
        )
