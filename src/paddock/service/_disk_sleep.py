"""Sandboxes that are made again under their id: taken back to a snapshot, and woken from disk.

The trees of a snapshot take the place of a sandbox's. Until all of them lie beside its own, whole, nothing of the
sandbox is touched: what fails before leaves it as it was.
Sleep on disk is a snapshot that the sandbox has for itself, and the second half of a rollback. The caller holds the
lane of the sandbox alone. On its way to disk, or back, the row says `restoring`. `paused` with a snapshot to wake from
says that nothing of it runs anywhere. What is broken off leaves `restoring`, and the next one who holds the lane brings
it back to that.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from typing import NamedTuple

import msgspec

from paddock.backends._base import Backend, Instance, Paused
from paddock.errors import InvalidState, NotFound, PaddockError, ResourceExhausted, Unsupported
from paddock.model import RollbackSandbox, Sandbox, State
from paddock.storage._base import Pool

from . import _copies
from ._conduct import protected
from ._context import Component, Context
from ._copies import Copy
from ._doors import Egress
from ._gate import Entry
from ._live import Held, Live, end
from ._making import Birth
from ._nested import Nested
from ._policies import Policies
from ._remains import died, words
from ._secret_leases import Leases
from ._snapshot_store import SnapshotRow
from ._snapshots import Snapshots
from ._store import Row, has_ended
from ._tasks import in_thread
from ._ttl import hibernated, paused, running
from ._workspace_tree import WorkspaceTree, beside, own_trees


class Beside(NamedTuple):
    """What is copied, and the tree whose place it is to take."""

    copy: Copy
    place: str


class Rollback(Component):
    def __init__(
        self, context: Context, live: Live, snapshots: Snapshots, egress: Egress, policies: Policies, leases: Leases
    ) -> None:
        super().__init__(context)
        self._live, self._snapshots, self._egress = live, snapshots, egress
        self._policies, self._leases = policies, leases

    async def perform(self, action: RollbackSandbox, row: Row, held: Held, entry: Entry) -> Sandbox:
        """The caller holds the lane of the sandbox alone, and goes on if its own caller leaves."""
        held.backend.capabilities.require("freeze", held.backend.name)
        snapshot = self._snapshots.find(action.snapshot, entry.principal.id)
        await self._check(row, held, snapshot)
        row = self._store.move(row, State.RESTORING, restoring=snapshot.id)
        try:
            trees = self.trees(row, snapshot)
            await in_thread(_copies.make, self._pool(), [tree.copy for tree in trees], anew=True)
        except BaseException:
            await self._stay(row)
            raise
        held.dying = True
        try:
            await end(held.instance)
        finally:
            await self._live.release(row.id)
        row = await self._lay(row, held.backend, snapshot, trees)
        entry.done({"snapshot": snapshot.id})
        return row.sandbox

    async def finish(self, row: Row) -> Row:
        """Do the rest of a rollback that was broken off, and return the row as it is then. The caller holds the lane of
        the sandbox alone. ResourceExhausted: it stays as it is, until there is room."""
        backend = self._backends.named(row.sandbox.backend)
        # What was made before, or will be told to have been, is none of ours.
        row = self._store.move(row, State.RESTORING, restoring=row.restoring, incarnation=row.incarnation + 1)
        instance = await backend.adopt(row.id)
        try:
            trees = await self._copy_the_rest(row)
        except PaddockError as error:
            if instance is not None:
                await instance.aclose()
                return await self._stay(row)
            if not isinstance(error, ResourceExhausted):
                await self._failed(row, error)
            raise
        if instance is not None:
            await end(instance)
        return await self._lay(row, backend, self.snapshot_of(row), trees)

    async def _copy_the_rest(self, row: Row) -> tuple[Beside, ...]:
        """Whatever the dead daemon had come to: what is beside may be of an earlier rollback, unless its place is
        empty."""
        trees = self.trees(row, self.snapshot_of(row))
        pool = self._pool()
        names = set(await asyncio.to_thread(pool.names))
        missing = [tree.copy for tree in trees if tree.place in names or tree.copy.name not in names]
        await in_thread(_copies.make, pool, missing, anew=True)
        return trees

    def snapshot_of(self, row: Row) -> SnapshotRow:
        snapshot = None if row.restoring is None else self._snapshots.get(row.restoring)
        if snapshot is None:
            hint = f"paddock kill {row.id}"
            raise InvalidState(f"the snapshot that {row.id} comes back from is gone", hint=hint, sandbox=row.id)
        return snapshot

    async def _stay(self, row: Row) -> Row:
        """It is as before: it runs, or stands still, or has died of something else meanwhile."""
        await in_thread(_copies.discard, self._pool(), besides(row))
        return await self._live.check(self._store.move(row, State.RUNNING), paused=True)

    async def _lay(self, row: Row, backend: Backend, snapshot: SnapshotRow, trees: Sequence[Beside]) -> Row:
        """The trees of a dead sandbox become those of the snapshot, and it lives again."""
        row = running(row, self._clock)
        self._store.set_deadline(row)
        next = msgspec.structs.replace(row, incarnation=row.incarnation + 1)
        try:
            instance = await self.bear(row, next, backend, snapshot, trees)
        except Exception as error:  # a cancellation is a kill's, which records and buries
            await self._failed(row, error)
            raise
        return self.admit(row, next, backend, instance)

    async def _failed(self, row: Row, error: BaseException) -> None:
        self._store.move(row, State.FAILED, reason=f"rollback failed: {words(error)}")
        await in_thread(_copies.discard, self._pool(), (*own_trees(row), *besides(row)))

    def trees(self, row: Row, snapshot: SnapshotRow) -> tuple[Beside, ...]:
        pool = self._pool()
        limit = row.sandbox.spec.limits.disk_mib << 20
        own = Beside(Copy(snapshot.id, beside(row.id), limit), row.id)
        if row.workspace is None or snapshot.workspace is None:
            return (own,)
        limit_bytes = pool.usage(snapshot.workspace.tree).limit_bytes
        copy = Copy(snapshot.workspace.tree, beside(row.id, workspace=True), limit_bytes)
        return own, Beside(copy, row.workspace.tree)

    async def bear(
        self, row: Row, next: Row, backend: Backend, snapshot: SnapshotRow, trees: Sequence[Beside]
    ) -> Instance:
        """Of `row`, which is dead, with the trees beside it in their places: what it is as `next`."""
        # What the daemon before this one had asked for may have come to life since.
        if (stray := await backend.adopt(row.id)) is not None:
            await end(stray)
        await backend.forget(row.id)
        _put_in_place(self._pool(), trees)
        await in_thread(_copies.discard, self._pool(), [tree.copy.name for tree in trees])
        plan = self._leases.furnished((await self._birth(next, snapshot, backend)).plan(self._config.retention_seconds))
        instance = await backend.create(plan)
        try:
            if row.sandbox.spec.nested:
                await Nested.furnish(instance)
            await self._reopen(row, next)
        except BaseException:
            await end(instance)
            raise
        return instance

    def admit(self, row: Row, next: Row, backend: Backend, instance: Instance) -> Row:
        """It runs."""
        running = self._store.move(row, State.RUNNING, incarnation=next.incarnation)
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

    async def _check(self, row: Row, held: Held, snapshot: SnapshotRow) -> None:
        """InvalidState if its files are not ones that this sandbox can have."""
        if snapshot.template != held.instance.template:
            raise InvalidState(
                f"snapshot {snapshot.id} was made on another version of template {snapshot.template.name!r}"
                f" than {row.id} runs on",
                hint="make a sandbox of the snapshot instead: Sandbox.create(snapshot=...)",
            )
        if snapshot.snapshot.spec.mounts != row.sandbox.spec.mounts:
            raise InvalidState(f"snapshot {snapshot.id} has other mounts than {row.id}")
        self._snapshots.fits(snapshot, row.sandbox.spec.limits, held.backend)
        theirs, own = snapshot.workspace, row.workspace
        if (theirs and (theirs.layers, theirs.repository)) != (own and (own.layers, own.repository)):
            ours = "another" if theirs and own else _kind(own)
            raise InvalidState(
                f"snapshot {snapshot.id} has {_kind(theirs)}, and {row.id} has {ours}",
                hint="make a sandbox of the snapshot instead: Sandbox.create(snapshot=...)",
            )
        await self._snapshots.check_layers(snapshot)


def _kind(workspace: WorkspaceTree | None) -> str:
    return "no workspace" if workspace is None else "a workspace"


def besides(row: Row) -> tuple[str, ...]:
    return beside(row.id), beside(row.id, workspace=True)


def _put_in_place(pool: Pool, trees: Sequence[Beside]) -> None:
    """By renames alone, which take no time: what was in their places is where the copies were, and is to be deleted."""
    for tree in trees:
        try:
            pool.exchange(tree.copy.name, tree.place)
        except NotFound:  # a daemon that died had emptied its place
            pool.rename(tree.copy.name, tree.place)


ASLEEP = "it sleeps on disk"


class DiskSleep(Component):
    def __init__(self, context: Context, live: Live, snapshots: Snapshots, rollback: Rollback, egress: Egress) -> None:
        super().__init__(context)
        self._live, self._snapshots, self._rollback, self._egress = live, snapshots, rollback, egress

    async def sleep(self, row: Row, held: Held, *, force: bool = False) -> Row:
        """Unsupported, ResourceExhausted, SandboxDied, InvalidState: it goes on as it was."""
        _check(row, held.backend)
        if not force:
            await self._live.sleeping.refuse_while_busy(row, held)
        stood = held.instance.stillness.now
        taken: Row | None = None
        ended = False
        try:
            # It is paused from the copy to its end, whatever dies: no later work is lost.
            async with self._snapshots.to_sleep_on(row, held) as (snapshot, times):
                taken = self._take(row, snapshot.id, times)
                held.dying = True
                await end(held.instance)
                ended = True
        except (PaddockError, OSError):
            if taken is not None:
                await self._live.release(row.id)
            elif not stood:
                with suppress(PaddockError, OSError):  # else the next use resumes it
                    await self._live.sleeping.resume(row, held)
            if not ended:
                raise
            # Else it is what could not be let go on any more.
        assert taken is not None
        await self._live.release(row.id)
        if row.sandbox.policy is not None:
            await self._egress.close(row)
        return await self._lie_down(taken, held.backend)

    async def settled(self, row: Row) -> Row:
        """The row, when what was broken off has been finished: it sleeps, or it was taken back to its snapshot."""
        if row.state is not State.RESTORING:
            return row
        if not self._for_sleep(row):
            return await self._rollback.finish(row)
        taken = self._take(row, row.restoring)
        await self._live.confirm_dead(taken)
        await in_thread(_copies.discard, self._pool(), besides(taken))
        return await self._lie_down(taken, self._backends.named(row.sandbox.backend))

    async def awake(self, row: Row, entry: Entry) -> Row:
        """Of one with a snapshot to come back from. SandboxDied; what keeps it from waking, as ResourceExhausted,
        leaves it asleep."""
        row = await self.settled(row)
        if row.asleep:
            row = await self._live.check(row)  # its time may be over
        if has_ended(row):
            raise died(row.sandbox)
        if not row.asleep:
            return row
        try:
            return await self._wake(row, entry.number)
        except PaddockError:
            row = await self._live.check(self._store.get(row.id) or row)
            if has_ended(row):  # its time was over by then
                raise died(row.sandbox) from None
            raise

    async def _wake(self, row: Row, number: int | None) -> Row:
        taken = self._take(row, row.restoring)
        backend = self._backends.named(row.sandbox.backend)
        try:
            taken = running(taken, self._clock)
            snapshot = self._rollback.snapshot_of(taken)
            trees = self._rollback.trees(taken, snapshot)
            await in_thread(_copies.make, self._pool(), [tree.copy for tree in trees], anew=True)
            next = msgspec.structs.replace(taken, incarnation=taken.incarnation + 1)
            instance = await self._rollback.bear(taken, next, backend, snapshot, trees)
        except BaseException:
            await in_thread(_copies.discard, self._pool(), besides(taken))
            if self._clock.boottime() >= taken.deadline:  # its TTL was over on the way
                self._store.set_deadline(taken)
            await self._lie_down(taken, backend)
            raise
        self._store.set_deadline(taken)
        woken = self._rollback.admit(taken, next, backend, instance)
        await self._snapshots.discard(snapshot.id)
        self._audit.event("sandbox.woken", sandbox=row.id, message="it slept on disk", decision=number)
        return woken

    def _take(self, row: Row, snapshot: str | None, times: Paused | None = None) -> Row:
        """From here on a daemon that dies leaves one that sleeps. Who has seen it as it was before can do nothing to
        it."""
        taken = self._store.move(row, State.RESTORING, restoring=snapshot, incarnation=row.incarnation + 1)
        stands = taken if times is None else paused(taken, self._clock, times)
        stands = hibernated(stands, self._clock, self._config.retention_seconds)
        if stands is not taken:
            self._store.set_deadline(stands)
        return stands

    async def _lie_down(self, taken: Row, backend: Backend) -> Row:
        """Nothing of it runs any more."""
        await backend.forget(taken.id)
        return self._store.move(taken, State.PAUSED, restoring=taken.restoring, reason=ASLEEP)

    def _for_sleep(self, row: Row) -> bool:
        found = None if row.restoring is None else self._snapshots.get(row.restoring)
        return found is not None and found.for_sleep


def _check(row: Row, backend: Backend) -> None:
    if not backend.capabilities.memory:
        raise Unsupported(
            f"level {backend.level.value!r} cannot write the memory of a sandbox to disk",
            hint="pause it without `to_disk`: then it keeps its memory, and nothing in it runs",
            feature="memory",
        )
    if row.sandbox.spec.nested:
        raise Unsupported(
            f"sandbox {row.id} may have children, which would end with it", hint="pause it without `to_disk`"
        )
