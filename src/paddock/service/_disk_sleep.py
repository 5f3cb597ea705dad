"""Sleep on disk: the memory of a sandbox is given back, and the next use wakes it where it stood.

A snapshot that the sandbox has for itself, and the second half of a rollback. While the row says `restoring`, whose
holder lives, somebody is at it: on its way to disk, or back. `paused` with a snapshot to wake from says that nothing of
it runs anywhere. Who dies between the two leaves a row that the next one who looks brings back to that.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Container, Generator
from contextlib import ExitStack, contextmanager, suppress

import msgspec

from paddock.audit import AuditLog
from paddock.backends._base import Backend
from paddock.errors import InvalidState, PaddockError, SandboxDied, Unsupported
from paddock.model import SandboxId, State
from paddock.storage._base import Pool

from . import _copies
from ._clock import Clock
from ._egress import Egress
from ._gate import Entry
from ._lifecycle import Lifecycle
from ._live import LIVE, Held, Live
from ._providers import Backends
from ._rebirth import Rebirth, besides, end
from ._remains import died, has_ended
from ._rollback import Rollback
from ._snapshot_store import SnapshotRow
from ._snapshots import Snapshots
from ._store import Row, Store
from ._tasks import Tasks
from ._ttl import hibernated, running
from ._workspace_tree import own_trees

ASLEEP = "it sleeps on disk"
_NOBODY = "nobody"
_PAUSE_SECONDS = 0.02


class DiskSleep:
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
        rollback: Rollback,
        egress: Egress,
        audit: AuditLog,
        clock: Clock,
        retention_seconds: float,
    ) -> None:
        self._retention = retention_seconds
        self._store, self._lifecycle, self._live, self._backends = store, lifecycle, live, backends
        self._pool, self._snapshots, self._tasks, self._rebirth = pool, snapshots, tasks, rebirth
        self._egress, self._audit, self._clock = egress, audit, clock
        self._rollback = rollback
        self._waking: dict[SandboxId, asyncio.Task[None]] = {}

    async def sleep(self, row: Row, held: Held, *, force: bool = False) -> Row:
        """Unsupported, ResourceExhausted, SandboxDied, InvalidState: it goes on as it was."""
        _check(row, held.backend)
        async with held.turning:
            try:
                return await self._sleep(self._store.get(row.id) or row, held, force=force)
            except (InvalidState, SandboxDied):
                now = await self.settled(self._store.get(row.id) or row)
                if now.asleep:  # another service was quicker
                    return now
                raise

    async def _sleep(self, row: Row, held: Held, *, force: bool) -> Row:
        if held.row.incarnation != row.incarnation:
            raise InvalidState(f"sandbox {row.id} was made again meanwhile", sandbox=row.id)
        if not force:
            await self._live.sleeping.refuse_while_busy(row, held)
        taken: Row | None = None
        ended = False
        with ExitStack() as until_asleep:
            try:
                # It stands from the copy to its end: nothing that it does comes between, and is forgotten.
                async with self._snapshots.to_sleep_on(row, held) as snapshot:
                    taken = self._take(row, LIVE, snapshot.id)
                    until_asleep.enter_context(self._in_hand(taken))
                    held.dying = True
                    await end(held.instance)
                    ended = True
            except (PaddockError, OSError):
                if taken is not None:
                    await self._live.release(row.id)
                if not ended:
                    raise
                # Else it is what could not be let go on any more.
            assert taken is not None
            await self._live.release(row.id)
            if row.sandbox.policy is not None:
                await self._egress.close(row)
            return await self._lie_down(taken, row.holder, held.backend)

    async def settled(self, row: Row) -> Row:
        """The same, when nobody is taking it to disk or back any more."""
        while row.state is State.RESTORING and self._for_sleep(row):
            if self._live.is_being_made(row):
                await asyncio.sleep(_PAUSE_SECONDS)
            else:
                await self.finished(row)
            row = self._store.get(row.id) or row
        return row

    async def awake(self, row: Row, entry: Entry) -> Row:
        """Of one with a snapshot to come back from; what is being rolled back stays so, if somebody is at it.
        SandboxDied; what keeps it from waking, as ResourceExhausted, leaves it asleep."""
        if row.state is State.RESTORING and not self._for_sleep(row):
            row = await self._rollback.settled(row)
        while (row := await self.settled(row)).asleep:
            row = await self._live.check(row)
            if not row.asleep:
                break
            waking = self._waking.get(row.id)
            if waking is None:  # of many that use it at once, one wakes it
                work = self._wake(row, entry.number)
                waking = self._tasks.start(work, name=f"undo sandbox {row.id}: wake", awaited=True)
                self._waking[row.id] = waking
                waking.add_done_callback(lambda _, id=row.id: self._waking.pop(id, None))
            try:
                await asyncio.shield(waking)
            except PaddockError:
                row = await self._live.check(self._store.get(row.id) or row)
                if has_ended(row):  # its time was over by then
                    raise died(row.sandbox) from None
                raise
            row = self._store.get(row.id) or row
        return row

    async def finished(self, row: Row) -> bool:
        """Whoever was taking it to disk or back has died: it sleeps. False: it was doing something else."""
        if not self._for_sleep(row):
            return False
        await self._back_to_sleep(row, _RESTORING)
        return True

    async def alone(self, row: Row) -> None:
        """Of one that sleeps, and something lives under its id, which a dead service had asked for: that ends."""
        with suppress(SandboxDied):  # killed meanwhile
            await self._back_to_sleep(row, (State.PAUSED,))

    async def _back_to_sleep(self, row: Row, only_from: Container[State]) -> None:
        with suppress(InvalidState):  # somebody was quicker
            taken = self._take(row, only_from, row.restoring)
            with self._in_hand(taken):
                instance = await self._backends.named(taken.sandbox.backend).adopt(taken.id)
                if instance is not None:
                    await end(instance)
                _copies.discard(self._pool(), besides(taken))
                # Not ours: our end is not to be that of another program's sandbox.
                await self._lie_down(taken, row.holder, self._backends.named(row.sandbox.backend))

    async def _wake(self, row: Row, number: int | None) -> None:
        try:
            taken = self._take(row, (State.PAUSED,), row.restoring)
        except InvalidState:
            return  # another service was quicker
        with self._in_hand(taken):
            backend = self._backends.named(row.sandbox.backend)
            try:
                taken = running(taken, self._clock)
                snapshot = self._snapshot_of(taken)
                trees = self._rebirth.trees(taken, snapshot)
                await asyncio.to_thread(_copies.make, self._pool(), [tree.copy for tree in trees], anew=True)
                next = msgspec.structs.replace(taken, incarnation=taken.incarnation + 1)
                instance = await self._rebirth.bear(taken, next, backend, snapshot, trees)
            except BaseException:
                _copies.discard(self._pool(), besides(taken))
                if self._clock.boottime() >= taken.deadline:  # its TTL was over on the way
                    self._store.set_deadline(taken)
                await self._lie_down(taken, row.holder, backend)
                raise
            try:
                self._store.set_deadline(taken)
                await self._rebirth.admit(taken, next, backend, instance, holder=row.holder)
            except InvalidState:  # killed meanwhile
                now = self._store.get(row.id) or row
                raise died(now.sandbox) from None
        # That one alone: by now another service may be putting it to sleep again.
        self._snapshots.forget(snapshot.id)
        self._audit.event("sandbox.woken", sandbox=row.id, message="it slept on disk", decision=number)

    @contextmanager
    def _in_hand(self, taken: Row) -> Generator[None]:
        """Whoever comes waits for us. What we leave half done although we live, the next who looks finishes."""
        try:
            with self._live.making(taken.id):
                yield
        except BaseException:
            with suppress(PaddockError):  # it is where it can stay
                self._lifecycle.move(
                    taken, State.RESTORING, restoring=taken.restoring, holder=_NOBODY, only_from=_RESTORING
                )
            raise

    def _take(self, row: Row, only_from: Container[State], snapshot: str | None) -> Row:
        """It is ours alone from here on: who has seen it as it was before can do nothing to it. InvalidState."""
        taken = self._lifecycle.move(
            row,
            State.RESTORING,
            restoring=snapshot,
            holder=self._live.holder,
            incarnation=row.incarnation + 1,
            only_from=only_from,
        )
        stands = hibernated(taken, self._clock, self._retention)
        if stands is not taken:
            self._store.set_deadline(stands)
        return stands

    async def _lie_down(self, taken: Row, holder: str, backend: Backend) -> Row:
        """Nothing of it runs any more. SandboxDied: it was killed meanwhile."""
        await backend.forget(taken.id)
        try:
            return self._lifecycle.move(
                taken, State.PAUSED, restoring=taken.restoring, holder=holder, reason=ASLEEP, only_from=_RESTORING
            )
        except InvalidState:
            now = self._store.get(taken.id)
            if now is not None and has_ended(now):
                _copies.discard(self._pool(), own_trees(taken))
                self._snapshots.forget_sleep(taken.id)
                raise died(now.sandbox) from None
            raise

    def _for_sleep(self, row: Row) -> bool:
        found = None if row.restoring is None else self._snapshots.get(row.restoring)
        return found is not None and found.for_sleep

    def _snapshot_of(self, row: Row) -> SnapshotRow:
        found = None if row.restoring is None else self._snapshots.get(row.restoring)
        if found is None:
            raise InvalidState(f"what {row.id} slept on is gone", hint=f"paddock kill {row.id}", sandbox=row.id)
        return found


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


_RESTORING = (State.RESTORING,)
