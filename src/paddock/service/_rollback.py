"""Rollback: the trees of a snapshot take the place of a sandbox's, and it is made again under its id.

Until all of them lie beside its own, whole, nothing of the sandbox is touched: what fails before leaves it as it was.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import msgspec

from paddock.backends._base import Backend
from paddock.errors import InvalidState, PaddockError, ResourceExhausted
from paddock.model import RollbackSandbox, Sandbox, State
from paddock.storage._base import Pool

from . import _copies
from ._clock import Clock
from ._copies import Copy
from ._gate import Entry
from ._lifecycle import Lifecycle
from ._live import Held, Live, end
from ._providers import Backends
from ._rebirth import Beside, Rebirth, besides
from ._remains import words
from ._snapshot_store import SnapshotRow
from ._snapshots import Snapshots
from ._store import Row, Store
from ._tasks import Tasks, in_thread
from ._ttl import running
from ._workspace_tree import WorkspaceTree, own_trees


class Rollback:
    def __init__(
        self,
        *,
        lifecycle: Lifecycle,
        live: Live,
        backends: Backends,
        pool: Callable[[], Pool],
        snapshots: Snapshots,
        tasks: Tasks,
        rebirth: Rebirth,
        store: Store,
        clock: Clock,
    ) -> None:
        self._store, self._clock = store, clock
        self._lifecycle, self._live, self._backends = lifecycle, live, backends
        self._pool, self._snapshots, self._tasks, self._rebirth = pool, snapshots, tasks, rebirth

    async def perform(self, action: RollbackSandbox, row: Row, held: Held, entry: Entry) -> Sandbox:
        """The caller holds the lane of the sandbox alone, and goes on if its own caller leaves."""
        held.backend.capabilities.require("freeze", held.backend.name)
        snapshot = self._snapshots.find(action.snapshot, entry.principal.id)
        await self._check(row, held, snapshot)
        row = self._lifecycle.move(row, State.RESTORING, restoring=snapshot.id)
        try:
            trees = self._rebirth.trees(row, snapshot)
            await self._copy(row, [tree.copy for tree in trees])
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
        row = self._lifecycle.move(row, State.RESTORING, restoring=row.restoring, incarnation=row.incarnation + 1)
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
        return await self._lay(row, backend, self._snapshot_of(row), trees)

    async def _copy_the_rest(self, row: Row) -> tuple[Beside, ...]:
        """Whatever the dead daemon had come to: what is beside may be of an earlier rollback, unless its place is
        empty."""
        trees = self._rebirth.trees(row, self._snapshot_of(row))
        pool = self._pool()
        names = set(await asyncio.to_thread(pool.names))
        missing = [tree.copy for tree in trees if tree.place in names or tree.copy.name not in names]
        await self._copy(row, missing)
        return trees

    async def _copy(self, row: Row, copies: Sequence[Copy]) -> None:
        making = asyncio.to_thread(_copies.make, self._pool(), copies, anew=True)
        await self._tasks.complete(making, name=f"copy {row.id}")

    def _snapshot_of(self, row: Row) -> SnapshotRow:
        snapshot = None if row.restoring is None else self._snapshots.get(row.restoring)
        if snapshot is None:
            raise InvalidState(f"the snapshot that {row.id} was being taken back to is gone", sandbox=row.id)
        return snapshot

    async def _stay(self, row: Row) -> Row:
        """It is as before: it runs, or stands still, or has died of something else meanwhile."""
        await in_thread(_copies.discard, self._pool(), besides(row))
        return await self._live.check(self._lifecycle.move(row, State.RUNNING), paused=True)

    async def _lay(self, row: Row, backend: Backend, snapshot: SnapshotRow, trees: Sequence[Beside]) -> Row:
        """The trees of a dead sandbox become those of the snapshot, and it lives again."""
        row = running(row, self._clock)
        self._store.set_deadline(row)
        next = msgspec.structs.replace(row, incarnation=row.incarnation + 1)
        try:
            instance = await self._rebirth.bear(row, next, backend, snapshot, trees)
        except Exception as error:  # a cancellation is a kill's, which records and buries
            await self._failed(row, error)
            raise
        return self._rebirth.admit(row, next, backend, instance)

    async def _failed(self, row: Row, error: BaseException) -> None:
        self._lifecycle.move(row, State.FAILED, reason=f"rollback failed: {words(error)}")
        await in_thread(_copies.discard, self._pool(), (*own_trees(row), *besides(row)))

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
        self._snapshots.fits(snapshot, row.sandbox.spec.limits, held.backend, self._backends)
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
