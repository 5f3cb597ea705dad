"""What was recorded against what is there: rows, instances, trees, outputs. For the service that holds the lease."""

from __future__ import annotations

from collections.abc import Mapping

from paddock.audit import AuditLog
from paddock.backends._base import Backend, Ending
from paddock.errors import PaddockError, SandboxDied
from paddock.model import Level, SandboxId, State

from ._bases import Bases
from ._disk_sleep import DiskSleep
from ._garbage import Garbage
from ._live import Live
from ._providers import Backends
from ._remains import Remains
from ._rollback import Rollback
from ._snapshots import Snapshots
from ._store import Row, Store
from ._workshop import Workshops
from ._workspaces import Workspaces

_TRIED = frozenset({Level.CONTAINER, Level.GVISOR, Level.MICROVM})
"""Whether these can be had may take a trial to find out: who has never used them is not made to wait for one."""


class Reconciler:
    """Looks first at what is there and then at the rows: a row is written before anything is made for it, so what
    was seen without a row has none."""

    def __init__(
        self,
        *,
        store: Store,
        live: Live,
        remains: Remains,
        backends: Backends,
        audit: AuditLog,
        snapshots: Snapshots,
        rollback: Rollback,
        disk_sleep: DiskSleep,
        garbage: Garbage,
        workshops: Workshops,
        bases: Bases,
        workspaces: Workspaces,
    ) -> None:
        self._workspaces, self._disk_sleep = workspaces, disk_sleep
        self._workshops, self._bases = workshops, bases
        self._snapshots, self._rollback, self._garbage = snapshots, rollback, garbage
        self._store, self._live, self._remains = store, live, remains
        self._backends, self._audit = backends, audit

    async def sweep(self) -> None:
        before = {row.id: row for row in self._store.list()}
        used = {row.sandbox.backend for row in before.values()}
        for backend in self._backends.all():
            if backend.level in _TRIED and backend.name not in used:
                continue
            if backend.probe() is None:
                await self._instances(backend, await backend.living(), before)
        await self._rows()
        await self._rollbacks()
        self._snapshots.sweep(self._audit)
        self._workspaces.sweep(self._audit)
        await self._workshops.sweep()
        self._bases.sweep()
        await self._garbage.sweep()

    async def _instances(
        self, backend: Backend, living: Mapping[SandboxId, Ending | None], before: Mapping[SandboxId, Row]
    ) -> None:
        rows = {row.id: row for row in self._store.list()}
        workshops = self._workshops.living()
        for id, ending in living.items():
            if id in workshops:
                continue
            if id in rows and rows[id].sandbox.backend != backend.name:  # what carries for it, perhaps; never itself
                continue
            if id not in rows:
                await self._remove_instance(backend, id, ending)
            elif ending is not None and id in before:  # as it was before: the end may be that of its predecessor
                await self._live.ended(before[id], ending)
            elif ending is None and id in before and before[id].asleep:  # nobody will ask for what lives there
                await self._disk_sleep.alone(before[id])

    async def _remove_instance(self, backend: Backend, id: SandboxId, ending: Ending | None) -> None:
        if ending is None:
            self._audit.event("sandbox.orphan", sandbox=id, message="it lives without a row that says so; killed")
            instance = await backend.adopt(id)
            if instance is not None:
                try:
                    await instance.kill()
                except SandboxDied:
                    pass
                finally:
                    await instance.aclose()
        await backend.forget(id)

    async def _rows(self) -> None:
        """Rows first, then the backends: what is recorded as running was there before it was recorded."""
        await self._live.check_all(self._store.list())

    async def _rollbacks(self) -> None:
        for listed in self._store.list():
            # As it is now: the rest of the one before may have taken long, and its service has come further, or died.
            row = self._store.get(listed.id) or listed
            if row.state is State.RESTORING and not self._live.is_being_made(row):
                try:
                    if not await self._disk_sleep.finished(row):
                        await self._rollback.resume(row)
                except PaddockError as error:
                    self._audit.event("rollback.failed", sandbox=row.id, message=error.message[:1024])
