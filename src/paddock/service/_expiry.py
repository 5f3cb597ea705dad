"""The sweep that comes round: what time alone brings.

Nothing is killed here at its deadline but what sleeps on disk; the keeper and the guest do that, daemon or no daemon.
"""

from __future__ import annotations

import asyncio
import contextlib

from paddock.audit import AuditLog
from paddock.errors import Unrecorded

from ._activity import Activity
from ._clock import Clock
from ._garbage import Garbage
from ._live import Live
from ._policy_store import PolicyStore
from ._recover import Recovery
from ._store import Store

PERIOD_SECONDS = 30.0
KEEP_ENDED_SECONDS = 7 * 86_400.0


class Expiry:
    def __init__(
        self,
        *,
        store: Store,
        live: Live,
        recovery: Recovery,
        garbage: Garbage,
        audit: AuditLog,
        clock: Clock,
        period_seconds: float = PERIOD_SECONDS,
        keep_ended_seconds: float = KEEP_ENDED_SECONDS,
    ) -> None:
        self._store, self._live, self._recovery, self._garbage = store, live, recovery, garbage
        self._audit, self._clock, self._policies = audit, clock, PolicyStore(store)
        self._period, self._keep = period_seconds, keep_ended_seconds

    async def run(self, activity: Activity) -> None:
        """Until it is cancelled. A sweep that fails is recorded, and comes round again."""
        async for _ in activity.rounds(self._period):
            try:
                await self.once()
            except Exception as error:  # a backend's bug too: the next sweep may get further
                self._tell(error)

    async def once(self) -> None:
        await self._recovery.sandboxes()
        await self._live.check_all(self._store.list())
        await self._garbage.sweep()
        self._store.prune(self._clock.wall() - self._keep)
        self._policies.prune(self._clock.wall() - self._keep)
        await asyncio.to_thread(self._store.checkpoint)

    def _tell(self, error: Exception) -> None:
        with contextlib.suppress(Unrecorded):  # a full disk: then the sweep did nothing either
            self._audit.event("sweep.failed", message=f"{type(error).__name__}: {error}"[:1024])
