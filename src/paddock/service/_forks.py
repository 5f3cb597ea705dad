"""Fork and rollback: running sandboxes and the trees of others."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress

import msgspec

from paddock.backends._base import Backend
from paddock.errors import InvalidState, PaddockError, SandboxDied
from paddock.model import ForkSandbox, RollbackSandbox, Sandbox, State
from paddock.storage._base import Pool

from . import _validate
from ._allotment import Allotment
from ._gate import Entry
from ._lifecycle import Lifecycle
from ._live import Held, Live
from ._making import Birth, Making
from ._providers import Backends
from ._remains import has_ended, words
from ._snapshot_store import SnapshotRow
from ._snapshots import Snapshots
from ._store import Row, Store
from ._tasks import Tasks
from ._workspace_tree import refuse

MOST = 1000


class Forks:
    def __init__(
        self,
        *,
        store: Store,
        lifecycle: Lifecycle,
        live: Live,
        backends: Backends,
        pool: Callable[[], Pool],
        making: Making,
        snapshots: Snapshots,
        tasks: Tasks,
        allotment: Allotment,
    ) -> None:
        self._allotment = allotment
        self._store, self._lifecycle, self._live, self._backends = store, lifecycle, live, backends
        self._pool, self._making, self._snapshots, self._tasks = pool, making, snapshots, tasks

    async def fork(self, action: ForkSandbox, parent: Row, held: Held, entry: Entry) -> tuple[Sandbox, ...]:
        _validate.check_count(action.count, MOST)
        refuse(parent, "a child")
        held.backend.capabilities.require("freeze", held.backend.name)
        of = parent.sandbox
        ttl = of.spec.ttl_seconds if action.ttl_seconds is None else action.ttl_seconds
        _validate.check_ttl(ttl)
        spec = msgspec.structs.replace(of.spec, name=None, ttl_seconds=ttl)
        outer, owner = self._allotment.outer(entry.principal), of.owner
        if outer is not None:
            spec, owner = self._allotment.of_fork(outer, spec, action.count), entry.principal.id
        births = [
            Birth(
                self._making.row(spec, held.instance.template, owner, of.backend, of.level, parent.id),
                held.instance.template,
                held.backend,
            )
            for _ in range(action.count)
        ]
        for birth in births:
            self._store.add(birth.row)
        limit = spec.limits.disk_mib << 20

        async def fill() -> None:
            first, *others = (birth.row.id for birth in births)
            try:
                await self._snapshots.copy(held.instance, parent.id, first, limit_bytes=limit)
            except SandboxDied:
                raise await self._live.dead(parent) from None
            pool = self._pool()
            await asyncio.to_thread(lambda: [pool.snapshot(first, other, limit_bytes=limit) for other in others])

        def recorded() -> None:
            entry.done({"children": [birth.row.id for birth in births]})

        return tuple(row.sandbox for row in await self._making.bear(births, fill, recorded))

    async def rollback(self, action: RollbackSandbox, row: Row, held: Held, entry: Entry) -> Sandbox:
        held.backend.capabilities.require("freeze", held.backend.name)
        refuse(row, "a rollback")
        snapshot = self._snapshots.find(action.snapshot, entry.principal.id)
        self._check(row, held, snapshot)
        entry.done({"snapshot": snapshot.id})
        # Once begun it goes on, whatever becomes of the caller.
        return await self._tasks.finish(self._rollback(row, held, snapshot), name=f"undo sandbox {row.id}: rollback")

    async def resume(self, row: Row) -> None:
        """Does the rest of a rollback whose service died. It fails as that would have."""
        snapshot = None if row.restoring is None else self._snapshots.get(row.restoring)
        backend = self._backends.find(row.sandbox.backend)
        if snapshot is None or backend is None:
            self._lifecycle.move(row, State.FAILED, reason="the snapshot that it was being taken back to is gone")
            return
        # What the dead service has made, or will be told to have made, is none of ours.
        again = row.incarnation + 1
        row = self._lifecycle.move(
            row, State.RESTORING, restoring=snapshot.id, holder=self._live.holder, incarnation=again
        )
        with self._live.making(row.id):
            instance = await backend.adopt(row.id)
            if instance is not None:
                with suppress(SandboxDied):
                    await instance.kill()
                await instance.aclose()
            await self._lay(row, backend, snapshot)

    async def _rollback(self, row: Row, held: Held, snapshot: SnapshotRow) -> Sandbox:
        with self._live.making(row.id):
            row = self._lifecycle.move(row, State.RESTORING, restoring=snapshot.id, holder=self._live.holder)
            held.dying = True
            with suppress(SandboxDied):
                await held.instance.kill()
            await self._live.release(row.id)
            return (await self._lay(row, held.backend, snapshot)).sandbox

    async def _lay(self, row: Row, backend: Backend, snapshot: SnapshotRow) -> Row:
        """The tree of a dead sandbox becomes that of the snapshot, and it lives again."""
        made = row.incarnation + 1
        try:
            await backend.forget(row.id)
            self._pool().delete(row.id)
            limit = row.sandbox.spec.limits.disk_mib << 20
            await asyncio.to_thread(self._pool().snapshot, snapshot.id, row.id, limit_bytes=limit)
            instance = await backend.create(
                Birth(msgspec.structs.replace(row, incarnation=made), snapshot.template, backend).plan()
            )
        except BaseException as error:
            await self._failed(row, error)
            raise
        try:
            running = self._lifecycle.move(row, State.RUNNING, incarnation=made)
        except InvalidState:  # killed meanwhile
            with suppress(SandboxDied):
                await instance.kill()
            await instance.aclose()
            await backend.forget(row.id)
            self._pool().delete(row.id)
            raise
        self._live.admit(running, backend, instance)
        return running

    async def _failed(self, row: Row, error: BaseException) -> None:
        now = self._store.get(row.id)
        if now is not None and not has_ended(now):
            self._lifecycle.move(row, State.FAILED, reason=f"rollback failed: {words(error)}")
        with suppress(PaddockError):
            self._pool().delete(row.id)

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
        self._snapshots.check_layers(snapshot)
