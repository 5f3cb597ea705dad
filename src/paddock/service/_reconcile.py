"""What was recorded against what is there: rows, instances, trees, outputs. For the service that holds the lease."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping

from paddock.audit import AuditLog
from paddock.backends._base import Backend, Ending
from paddock.errors import PaddockError, SandboxDied
from paddock.model import Noun, SandboxId, State
from paddock.storage._base import Pool

from ._bases import Bases
from ._forks import Forks
from ._live import Live
from ._providers import Backends
from ._remains import Remains
from ._snapshots import Snapshots
from ._store import Store
from ._workshop import Workshops


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
        pool: Callable[[], Pool],
        audit: AuditLog,
        snapshots: Snapshots,
        forks: Forks,
        workshops: Workshops,
        bases: Bases,
    ) -> None:
        self._workshops, self._bases = workshops, bases
        self._snapshots, self._forks = snapshots, forks
        self._store, self._live, self._remains = store, live, remains
        self._backends, self._pool, self._audit = backends, pool, audit

    async def sweep(self) -> None:
        for backend in self._backends.all():
            if backend.probe() is None:
                await self._instances(backend, await backend.living())
        await self._rows()
        await self._rollbacks()
        self._trees()
        self._snapshots.sweep(self._audit)
        await self._workshops.sweep()
        self._bases.sweep()
        self._outputs()

    async def _instances(self, backend: Backend, living: Mapping[SandboxId, Ending | None]) -> None:
        rows = {row.id: row for row in self._store.list()}
        workshops = self._workshops.living()
        for id, ending in living.items():
            if id in workshops:
                continue
            row = rows.get(id)
            if row is None:
                await self._remove_instance(backend, id, ending)
            elif ending is not None:
                await self._live.ended(row, ending)

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
        for row in self._store.list():
            if row.state is State.RESTORING and not self._live.is_being_made(row):
                try:
                    await self._forks.resume(row)
                except PaddockError as error:
                    self._audit.event("rollback.failed", sandbox=row.id, message=error.message[:1024])

    def _trees(self) -> None:
        pool = self._pool()
        names = pool.names()
        living = self._living()
        for name in names:
            if name.startswith(Noun.SANDBOX) and name not in living:
                self._audit.event("tree.orphan", sandbox=name, message="no living sandbox has it; deleted")
                pool.delete(name)

    def _outputs(self) -> None:
        if not self._remains.outputs.is_dir():
            return
        names = os.listdir(self._remains.outputs)
        living = self._living()
        for name in names:
            if name.startswith(Noun.SANDBOX) and name not in living:
                self._remains.remove_outputs(name)

    def _living(self) -> set[str]:
        """One question for all: with hundreds of sandboxes, a question for each would hold up everybody else."""
        return {row.id for row in self._store.list()}
