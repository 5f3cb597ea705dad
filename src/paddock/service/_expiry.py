"""The sweep that comes round: what time alone brings.

Nothing is killed here at its deadline but what sleeps on disk; the keeper and the guest do that, daemon or no daemon.
"""

from __future__ import annotations

import asyncio
import contextlib

from paddock.errors import Unrecorded

from ._context import Component, Context
from ._garbage import Garbage
from ._live import Live
from ._policies import Policies
from ._recover import Recovery
from ._tasks import Activity

PERIOD_SECONDS = 30.0
KEEP_ENDED_SECONDS = 7 * 86_400.0


class Expiry(Component):
    def __init__(
        self,
        context: Context,
        live: Live,
        policies: Policies,
        recovery: Recovery,
        garbage: Garbage,
        period_seconds: float,
    ) -> None:
        super().__init__(context)
        self._live, self._recovery, self._garbage = live, recovery, garbage
        self._policies, self._period = policies, period_seconds

    async def run(self, activity: Activity) -> None:
        """Until it is cancelled. A sweep that fails is recorded, and comes round again."""
        async for _ in activity.rounds(self._period):
            try:
                await self.once()
            except Exception as error:  # a backend's bug too: the next sweep may get further
                self._tell(error)

    async def once(self) -> None:
        await self._recovery.sandboxes()
        await self._recovery.unfinished()
        await self._live.check_all(self._store.list())
        await self._garbage.sweep()
        self._store.prune(self._clock.wall() - KEEP_ENDED_SECONDS)
        self._policies.prune(self._clock.wall() - KEEP_ENDED_SECONDS)
        await asyncio.to_thread(self._store.checkpoint)

    def _tell(self, error: Exception) -> None:
        with contextlib.suppress(Unrecorded):  # a full disk: then the sweep did nothing either
            self._audit.event("sweep.failed", message=f"{type(error).__name__}: {error}"[:1024])
