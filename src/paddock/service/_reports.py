"""What `doctor` and `audit verify` are told."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

from paddock.audit import AuditLog, verify
from paddock.model import AuditReport, Check, Diagnosis
from paddock.storage._base import Pool

from ._providers import Backends
from ._store import Store


class Reports:
    def __init__(
        self, state_dir: Path, *, store: Store, audit: AuditLog, backends: Backends, pool: Callable[[], Pool]
    ) -> None:
        self._state_dir, self._store, self._audit = state_dir, store, audit
        self._backends, self._pool = backends, pool

    async def verify(self) -> AuditReport:
        return await asyncio.to_thread(verify, self._audit.directory)

    async def diagnose(self) -> Diagnosis:
        checks: list[Check] = []
        for backend in self._backends.all():
            checks += backend.checks()
        checks += self._storage()
        report = await self.verify()
        checks.append(
            Check(
                area="audit",
                name="log",
                status="ok" if report.ok else "missing",
                detail=report.problem or f"{report.records} records in {report.segments} segments",
                fix=None if report.ok else "paddock audit verify",
            )
        )
        checks.append(
            Check(
                area="state",
                name="database",
                status="ok",
                detail=f"{self._store.path}: survives kill -9 of its writers",
            )
        )
        level = self._backends.default_level()
        return Diagnosis(checks=tuple(checks), default_level=level and level.value, state_dir=str(self._state_dir))

    def _storage(self) -> tuple[Check, ...]:
        try:
            return self._pool().checks()
        except Exception as error:
            return (
                Check(
                    area="storage", name="pool", status="missing", detail=str(error), fix="see `paddock run -- true`"
                ),
            )
