"""Rollback: the trees of a snapshot take the place of a sandbox's, and it is made again under its id.

Until all of them lie beside its own, whole, nothing of the sandbox is touched: what fails before leaves it as it was.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress

import msgspec

from paddock.backends._base import Backend
from paddock.errors import InvalidState, PaddockError, ResourceExhausted
from paddock.model import RollbackSandbox, Sandbox, SandboxId, State
from paddock.storage._base import Pool

from . import _copies
from ._clock import Clock, holder_alive
from ._gate import Entry
from ._lifecycle import Lifecycle
from ._live import LIVE, Held, Live
from ._providers import Backends
from ._rebirth import Beside, Rebirth, besides, end
from ._remains import has_ended, words
from ._snapshot_store import SnapshotRow
from ._snapshots import Snapshots
from ._store import Row, Store
from ._tasks import Tasks
from ._ttl import running
from ._workspace_tree import WorkspaceTree, own_trees


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
        rebirth: Rebirth,
        clock: Clock,
    ) -> None:
        self._clock = clock
        self._store, self._lifecycle, self._live, self._backends = store, lifecycle, live, backends
        self._pool, self._snapshots, self._tasks, self._rebirth = pool, snapshots, tasks, rebirth
        self._resuming: dict[SandboxId, asyncio.Task[None]] = {}

    async def perform(self, action: RollbackSandbox, row: Row, held: Held, entry: Entry) -> Sandbox:
        held.backend.capabilities.require("freeze", held.backend.name)
        snapshot = self._snapshots.find(action.snapshot, entry.principal.id)
        self._check(row, held, snapshot)
        # Once begun it goes on, whatever becomes of the caller.
        work = self._rollback(row, held, snapshot)
        sandbox = await self._tasks.finish(work, name=f"undo sandbox {row.id}: rollback")
        entry.done({"snapshot": snapshot.id})
        return sandbox

    async def settled(self, row: Row) -> Row:
        """For who uses it: the rest is done now if its service has died. The sweep may be long in coming where all
        programs are short. What keeps it from being done, as ResourceExhausted, is raised, unless it runs on."""
        resuming = self._resuming.get(row.id)
        if resuming is None:
            if self._live.is_being_made(row):
                return row
            # Once begun it goes on, whatever becomes of the caller.
            name = f"undo sandbox {row.id}: rest of a rollback"
            resuming = self._resuming[row.id] = self._tasks.start(self.resume(row), name=name, awaited=True)
            resuming.add_done_callback(lambda _, id=row.id: self._resuming.pop(id, None))
        try:
            await asyncio.shield(resuming)
        except PaddockError as error:
            now = self._store.get(row.id) or row
            if now.state is State.RESTORING and not isinstance(error, InvalidState):  # that one: another was quicker
                raise
        return self._store.get(row.id) or row

    async def resume(self, row: Row) -> None:
        """Does the rest of a rollback whose service died. ResourceExhausted: it stays as it is, until there is room."""
        backend = self._backends.named(row.sandbox.backend)
        # What the dead service has made, or will be told to have made, is none of ours.
        again, holder = row.incarnation + 1, self._live.holder
        maker = self._maker(row)  # who that was is not known any more
        row = self._lifecycle.move(
            row,
            State.RESTORING,
            restoring=row.restoring,
            holder=holder,
            incarnation=again,
            only_from=(State.RESTORING,),
        )
        with self._live.making(row.id):
            instance = await backend.adopt(row.id)
            try:
                trees = await self._copy_the_rest(row)
            except PaddockError as error:
                if instance is not None:
                    await instance.aclose()
                    await self._stay(row, maker)
                elif not isinstance(error, ResourceExhausted):
                    await self._failed(row, error)
                raise
            if instance is not None:
                await end(instance)
            await self._lay(row, backend, self._snapshot_of(row), trees, maker)

    async def _rollback(self, row: Row, held: Held, snapshot: SnapshotRow) -> Sandbox:
        maker = self._maker(row)
        # Not out of the hands of another one, who is at it already and would lay its trees beside ours.
        row = self._lifecycle.move(
            row, State.RESTORING, restoring=snapshot.id, holder=self._live.holder, only_from=LIVE
        )
        with self._live.making(row.id):
            try:
                trees = self._rebirth.trees(row, snapshot)
                await asyncio.to_thread(_copies.make, self._pool(), [tree.copy for tree in trees], anew=True)
            except BaseException:
                await self._stay(row, maker)
                raise
            held.dying = True
            await end(held.instance)
            await self._live.release(row.id)
            return (await self._lay(row, held.backend, snapshot, trees, maker)).sandbox

    async def _copy_the_rest(self, row: Row) -> tuple[Beside, ...]:
        """Whatever the dead service had come to: what is beside may be of an earlier rollback, unless its place is
        empty."""
        trees = self._rebirth.trees(row, self._snapshot_of(row))
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

    def _maker(self, row: Row) -> str:
        """Whose it is afterwards. One that is not persistent stays with the program that made it, dead or alive, and
        does not end with this one; of the others whoever is here can serve what runs inside."""
        if row.sandbox.spec.persistent and not holder_alive(row.holder):
            return self._live.holder
        return row.holder

    async def _stay(self, row: Row, maker: str) -> None:
        """It is as before: it runs, or stands still."""
        _copies.discard(self._pool(), besides(row))
        with suppress(InvalidState):  # killed meanwhile
            await self._live.check(self._lifecycle.move(row, State.RUNNING, holder=maker), paused=True)

    async def _lay(self, row: Row, backend: Backend, snapshot: SnapshotRow, trees: Sequence[Beside], maker: str) -> Row:
        """The trees of a dead sandbox become those of the snapshot, and it lives again."""
        row = running(row, self._clock)
        self._store.set_deadline(row)
        next = msgspec.structs.replace(row, incarnation=row.incarnation + 1)
        try:
            instance = await self._rebirth.bear(row, next, backend, snapshot, trees)
        except BaseException as error:
            await self._failed(row, error)
            raise
        return await self._rebirth.admit(row, next, backend, instance, holder=maker)

    async def _failed(self, row: Row, error: BaseException) -> None:
        now = self._store.get(row.id)
        if now is not None and not has_ended(now):
            self._lifecycle.move(row, State.FAILED, reason=f"rollback failed: {words(error)}")
        _copies.discard(self._pool(), (*own_trees(row), *besides(row)))

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
        self._snapshots.fits(snapshot, row.sandbox.spec.limits, held.backend, self._backends)
        theirs, own = snapshot.workspace, row.workspace
        if (theirs and (theirs.layers, theirs.repository)) != (own and (own.layers, own.repository)):
            ours = "another" if theirs and own else _kind(own)
            raise InvalidState(
                f"snapshot {snapshot.id} has {_kind(theirs)}, and {row.id} has {ours}",
                hint="make a sandbox of the snapshot instead: Sandbox.create(snapshot=...)",
            )
        self._snapshots.check_layers(snapshot)


def _kind(workspace: WorkspaceTree | None) -> str:
    return "no workspace" if workspace is None else "a workspace"
