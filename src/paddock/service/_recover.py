"""Recovery: what is recorded is made to agree with what lives. See docs/design/order.md.

`recover` runs once, before the daemon listens. `sandboxes` and `unfinished` come round with every sweep as well: what a
daemon had asked for before it died may come to life later, a row whose lane is free is nobody's work, and on a full
disk nothing can be deleted.

The sweep brings what time alone brings. Nothing is killed there at its deadline but what sleeps on disk; the keeper and
the guest do that, daemon or no daemon.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from enum import Enum, auto

from paddock.backends._base import Backend, Ending
from paddock.errors import PaddockError, Unrecorded
from paddock.model import SandboxId, State

from ._context import Component, Context
from ._disk_sleep import DiskSleep
from ._garbage import Garbage
from ._live import LIVE, Live, end
from ._policies import Policies
from ._remains import Remains
from ._shelf import Shelf
from ._snapshots import Snapshots
from ._store import Row
from ._tasks import Activity
from ._workspace_results import remove_quarantines
from ._workspaces import Workspaces

_AT_ONCE = 8
_GONE = Ending(limit=None, reason="")


class Recorded(Enum):
    CREATING = auto()
    RUNNING = auto()
    """Or paused in memory."""
    ASLEEP = auto()
    RESTORING = auto()
    """From its own hibernation, or from another snapshot."""
    ENDED = auto()
    """Or without a row."""


class Lives(Enum):
    YES = auto()
    NO = auto()
    UNKNOWN = auto()


class Step(Enum):
    NOTHING = auto()
    KILL_AND_FAIL = auto()
    ADOPT = auto()
    FINALIZE = auto()
    KILL = auto()
    FORGET = auto()
    """The backend keeps an end until it is told so."""
    FINISH = auto()


TABLE: Mapping[tuple[Recorded, Lives], Step] = {
    **{(recorded, Lives.UNKNOWN): Step.NOTHING for recorded in Recorded},
    (Recorded.CREATING, Lives.YES): Step.KILL_AND_FAIL,
    (Recorded.CREATING, Lives.NO): Step.KILL_AND_FAIL,
    (Recorded.RUNNING, Lives.YES): Step.ADOPT,
    (Recorded.RUNNING, Lives.NO): Step.FINALIZE,
    (Recorded.ASLEEP, Lives.YES): Step.KILL,
    (Recorded.ASLEEP, Lives.NO): Step.NOTHING,
    (Recorded.RESTORING, Lives.YES): Step.FINISH,
    (Recorded.RESTORING, Lives.NO): Step.FINISH,
    (Recorded.ENDED, Lives.YES): Step.KILL,
    (Recorded.ENDED, Lives.NO): Step.FORGET,
}


def recorded(row: Row | None) -> Recorded:
    if row is None:
        return Recorded.ENDED
    if row.asleep:
        return Recorded.ASLEEP
    match row.state:
        case State.CREATING:
            return Recorded.CREATING
        case State.RESTORING:
            return Recorded.RESTORING
        case State.RUNNING | State.PAUSED:
            return Recorded.RUNNING
        case State.KILLED | State.FAILED:
            return Recorded.ENDED


class Recovery(Component):
    def __init__(
        self,
        context: Context,
        live: Live,
        remains: Remains,
        snapshots: Snapshots,
        disk_sleep: DiskSleep,
        workspaces: Workspaces,
        shelf: Shelf,
    ) -> None:
        super().__init__(context)
        self._live, self._remains, self._snapshots = live, remains, snapshots
        self._disk_sleep, self._workspaces, self._shelf = disk_sleep, workspaces, shelf

    async def recover(self) -> None:
        """Put right what the daemon before this one has left. A step that fails is recorded, and stops no other."""
        await self._try("sandboxes", self.sandboxes)
        await self._try("pauses", self._pauses)
        await self._try("snapshots", self._snapshots.recover)
        await self._try("workspaces", self._workspaces.recover)
        await self._try("workshops", self._shelf.workshops.recover)
        await self._try("bases", self._shelf.bases.recover)
        await self._try("quarantines", lambda: asyncio.to_thread(remove_quarantines, self._shelf.directory))

    async def unfinished(self) -> None:
        """Also of this daemon: on a full disk nothing can be undone."""
        await self._try("snapshots", self._snapshots.recover)
        await self._try("workspaces", self._workspaces.put_right)

    async def sandboxes(self) -> None:
        """Asks only the backends that rows name."""
        for name in sorted(self._store.backends()):
            backend = self._backends.find(name)
            # A row is written before anything is made for it: what lives without a row at the end has none. And what is
            # recorded as running was there before: what does not live, though it was so recorded at first, is gone.
            before = {row.id: row for row in self._store.list()}
            living = await self._living(backend)
            rows, workshops = {row.id: row for row in self._store.list()}, self._shelf.workshops.living()
            work: list[Awaitable[None]] = []
            adopted: list[Row] = []
            for id in {*living, *(id for id, row in rows.items() if row.sandbox.backend == name)} - workshops:
                row = rows.get(id)
                if row is not None and (row.sandbox.backend != name or _has_begun(row, before.get(id))):
                    continue  # what carries for it, perhaps
                ending = living.get(id, _GONE)
                lives = Lives.UNKNOWN if backend is None or living is _UNKNOWN else Lives.NO if ending else Lives.YES
                step = TABLE[recorded(row), lives]
                if step is Step.NOTHING or (step is Step.FORGET and id not in living):
                    continue
                if backend is None or not self._lanes.is_free(id):
                    continue
                if step is not Step.ADOPT:
                    work.append(self._do(step, id, backend, ending))
                elif row is not None and self._live.get(row) is None:
                    adopted.append(row)
            if adopted:
                self._tasks.start(self._adopt(adopted), name="adopt ahead")
            await asyncio.gather(*work)

    async def _do(self, step: Step, id: SandboxId, backend: Backend, ending: Ending | None) -> None:
        async def act() -> None:
            async with self._lanes.exclusive(id):
                await self._act(step, id, backend, ending)

        await self._try(id, act)

    async def _act(self, step: Step, id: SandboxId, backend: Backend, ending: Ending | None) -> None:
        row = self._store.get(id)
        match step:
            case Step.FINALIZE if row is not None:
                await self._live.ended(row, None if ending is _GONE else ending)
            case Step.KILL_AND_FAIL if row is not None:
                await self._kill(id, backend)
                await self._remains.settle(row, None)
            case Step.FINISH if row is not None:
                await self._disk_sleep.settled(row)
            case Step.KILL:
                if row is None or not row.asleep:
                    message = "it lives without a row that says so; killed"
                    self._audit.event("sandbox.orphan", sandbox=id, message=message)
                await self._kill(id, backend)
            case Step.FORGET:
                await backend.forget(id)
            case _:
                pass

    async def _kill(self, id: SandboxId, backend: Backend) -> None:
        if (instance := await backend.adopt(id)) is not None:
            await end(instance)
        await backend.forget(id)

    async def _adopt(self, rows: list[Row]) -> None:
        """Ahead of the first use, which waits for its own sandbox only."""
        left = iter(rows)

        async def some() -> None:
            for row in left:
                with suppress(PaddockError, OSError):  # the first use is told
                    await self._live.hold(row)

        await asyncio.gather(*(some() for _ in range(_AT_ONCE)))

    async def _pauses(self) -> None:
        """A daemon that died may not have recorded that a sandbox stands still, or goes on."""
        for row in await self._live.check_all(tuple(row for row in self._store.list() if row.state in LIVE)):
            now = self._store.get(row.id)
            if row.state is State.RUNNING and now is not None and now.state is State.PAUSED:
                # It goes on since nobody knows when; the backend, asked to resume what runs, says until when.
                await self._live.sleeping.resume(now, await self._live.hold(now))

    async def _living(self, backend: Backend | None) -> Mapping[SandboxId, Ending | None]:
        try:
            return _UNKNOWN if backend is None or backend.probe() is not None else await backend.living()
        except (PaddockError, OSError):
            return _UNKNOWN

    async def _try(self, what: str, step: Callable[[], Awaitable[None] | None]) -> None:
        try:
            if (work := step()) is not None:
                await work
        except (PaddockError, OSError) as error:
            with suppress(Unrecorded):
                self._audit.event("recovery.failed", message=f"{what}: {type(error).__name__}: {error}"[:1024])


def _has_begun(row: Row, before: Row | None) -> bool:
    """Since `before` was read: it was made, made again, or woken from disk."""
    return before is None or (recorded(before), before.incarnation) != (recorded(row), row.incarnation)


_UNKNOWN: Mapping[SandboxId, Ending | None] = {}
"""Of a backend that can't be asked. Compared by identity."""


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
