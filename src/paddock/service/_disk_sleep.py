"""Sleep on disk: the memory of a sandbox is given back, and the next use wakes it where it stood.

A snapshot that the sandbox has for itself, and the second half of a rollback. The caller holds the lane of the sandbox
alone. On its way to disk, or back, the row says `restoring`. `paused` with a snapshot to wake from says that nothing of
it runs anywhere. What is broken off leaves `restoring`, and the next one who holds the lane brings it back to that.
"""

from __future__ import annotations

from contextlib import suppress

import msgspec

from paddock.backends._base import Backend, Paused
from paddock.errors import PaddockError, Unsupported
from paddock.model import State

from . import _copies
from ._context import Component, Context
from ._egress import Egress
from ._gate import Entry
from ._live import Held, Live, end
from ._remains import died
from ._rollback import Rollback, besides
from ._snapshots import Snapshots
from ._store import Row, has_ended
from ._tasks import in_thread
from ._ttl import hibernated, paused, running

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
