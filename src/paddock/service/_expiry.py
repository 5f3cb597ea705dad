"""The sweep that comes round: of all services on one state directory, the one with the lease does it.

Nothing is killed here at its deadline; the keeper and the guest do that, service or no service.
"""

from __future__ import annotations

import asyncio
import contextlib

from paddock.audit import AuditLog
from paddock.errors import Unrecorded

from ._clock import Clock, holder_alive
from ._policy_store import PolicyStore
from ._reconcile import Reconciler
from ._store import Store

PERIOD_SECONDS = 30.0
FIRST_PAUSE_SECONDS = 1.0
LEASE_SECONDS = 120.0
UNSWEPT_SECONDS = 600.0
KEEP_ENDED_SECONDS = 7 * 86_400.0
_LEASE = "reaper"


class Expiry:
    def __init__(
        self,
        *,
        store: Store,
        reconciler: Reconciler,
        audit: AuditLog,
        clock: Clock,
        holder: str,
        period_seconds: float = PERIOD_SECONDS,
        keep_ended_seconds: float = KEEP_ENDED_SECONDS,
    ) -> None:
        self._store, self._reconciler, self._audit, self._clock = store, reconciler, audit, clock
        self._policies = PolicyStore(store)
        self._holder, self._period, self._keep = holder, period_seconds, keep_ended_seconds

    async def run(self) -> None:
        """Until it is cancelled. A sweep that fails is recorded, and comes round again."""
        await asyncio.sleep(self._first_pause())
        while True:
            try:
                await self.once()
            except Exception as error:  # a backend's bug too: the next sweep may get further
                self._tell(error)
            await asyncio.sleep(self._period)

    def _first_pause(self) -> float:
        """A program of one command is not to sweep beside it each time, but now and then one of them must."""
        held, now = self._store.lease(_LEASE), self._clock.boottime()
        if held is None:  # a new state directory: the first of those sweeps is due in a while
            self._store.take_lease(_LEASE, "nobody", now, over=None)
        elif now - held[2] > UNSWEPT_SECONDS:
            return 0.0
        return FIRST_PAUSE_SECONDS

    async def once(self) -> bool:
        """False if another service has the lease."""
        if self.take() is None:
            return False
        await self._reconciler.sweep()
        self._store.prune(self._clock.wall() - self._keep)
        self._policies.prune(self._clock.wall() - self._keep)
        await asyncio.to_thread(self._store.checkpoint)
        return True

    def take(self) -> int | None:
        """The lease's epoch if it is ours now: it was free, had run out, or its holder is dead."""
        held = self._store.lease(_LEASE)
        now = self._clock.boottime()
        if held is not None:
            holder, _, until = held
            if holder != self._holder and now < until and holder_alive(holder):
                return None
        return self._store.take_lease(_LEASE, self._holder, now + LEASE_SECONDS, over=None if held is None else held[1])

    def release(self) -> None:
        """Lets the next service sweep at once."""
        held = self._store.lease(_LEASE)
        if held is not None and held[0] == self._holder:
            # Not 0: the time tells when the last sweep was.
            self._store.take_lease(_LEASE, self._holder, self._clock.boottime(), over=held[1])

    def _tell(self, error: Exception) -> None:
        with contextlib.suppress(Unrecorded):  # a full disk: then the sweep did nothing either
            self._audit.event("sweep.failed", message=f"{type(error).__name__}: {error}"[:1024])
