"""Recover: make the records agree with what lives. See docs/design/order.md.

`recover` runs once, before the daemon listens. A sweep repeats most of it: a request of a dead daemon may take effect
later, a row may be left over, and on a full disk nothing can be deleted.

The sweep also does what is due. At its deadline it ends only hibernated sandboxes. The supervisor and the guest end the
others, with or without a daemon.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from paddock.backends.base import Backend, Ending
from paddock.daemon.context import Component, Context
from paddock.daemon.sandboxes.running import LIVE, destroy
from paddock.daemon.store.database import Row
from paddock.daemon.tasks import Activity
from paddock.daemon.workspaces.results import remove_quarantines
from paddock.errors import PaddockError, UnrecordedError, logged
from paddock.model import SandboxId, State

if TYPE_CHECKING:
    from .service import Service

PERIOD_SECONDS = 30.0
KEEP_ENDED_SECONDS = 7 * 86_400.0
_AT_ONCE = 8
_GONE = Ending(limit=None, reason="")


class Recovery(Component):
    def __init__(self, context: Context, service: Service, period_seconds: float) -> None:
        super().__init__(context)
        self._service, self._running, self._period = service, service.running, period_seconds

    async def recover(self) -> None:
        """Repair what the last daemon left. A failed step is recorded, and the others still run."""
        service, repositories = self._service, self._service.repositories
        await self._try("sandboxes", self._sandboxes)
        await self._try("commands", lambda: service.execs.recover(self._asked()))
        await self._try("pauses", self._pauses)
        await self._try("snapshots", service.snapshots.recover)
        await self._try("workspaces", service.workspaces.recover)
        await self._try("workshops", repositories.utilities.recover)
        await self._try("bases", repositories.bases.recover)
        await self._try("quarantines", lambda: asyncio.to_thread(remove_quarantines, repositories.directory))

    async def run(self, activity: Activity) -> None:
        """Sweep until cancelled. A failed sweep is recorded and repeated."""
        async for _ in activity.rounds(self._period):
            try:
                await self.sweep()
            except Exception as error:  # a backend's bug too: the next sweep may get further
                self._tell("sweep.failed", error)

    async def sweep(self) -> None:
        await self._sandboxes()
        await self._try("commands", self._service.execs.learn)  # the supervisor may have hung
        # This daemon, too, can undo nothing on a full disk.
        await self._try("snapshots", self._service.snapshots.recover)
        await self._try("workspaces", self._service.workspaces.put_right)
        await self._running.check_all(self._store.list())
        await self._service.garbage.sweep()
        self._store.prune(self._clock.wall() - KEEP_ENDED_SECONDS)
        self._service.policies.prune(self._clock.wall() - KEEP_ENDED_SECONDS)
        await asyncio.to_thread(self._store.checkpoint)

    async def _sandboxes(self) -> None:
        """Ask the backends that rows name. One that can't be asked changes nothing. `Live.check_all` records ends."""
        for backend in self._asked():
            # A row comes before everything else: a sandbox that lives without a row at the end has none.
            before = {row.id: row for row in self._store.list()}
            try:
                living = (await backend.state()).living
            except (PaddockError, OSError):
                continue
            rows, utilities = {row.id: row for row in self._store.list()}, self._service.repositories.utilities.living()
            work: list[Awaitable[None]] = []
            adopted: list[Row] = []
            for id in {*living, *(id for id, row in rows.items() if row.sandbox.backend == backend.name)} - utilities:
                row, lives = rows.get(id), living.get(id, _GONE) is None
                if row is not None and (row.sandbox.backend != backend.name or _has_begun(row, before.get(id))):
                    continue  # what carries for it, perhaps
                if not self._lanes.is_free(id):
                    continue
                if row is None or row.hibernated or row.state not in LIVE:
                    work.append(self._try(id, partial(self._put_right, id, row, backend, lives)))
                elif lives and self._running.get(row) is None:
                    adopted.append(row)
            if adopted:
                self._tasks.start(self._adopt(adopted), name="adopt ahead")
            await asyncio.gather(*work)

    async def _put_right(self, id: SandboxId, was: Row | None, backend: Backend, lives: bool) -> None:
        """Finish or undo a sandbox that isn't recorded as running. `was`: its row when the backend was asked."""
        async with self._lanes.exclusive(id):
            row = self._store.get(id)
            if was is None or row is None:
                if lives:
                    message = "it lives without a row that says so; killed"
                    self._audit.event("sandbox.orphan", sandbox=id, message=message)
                await destroy(backend, id)  # the backend keeps an end until the daemon has it forget it
            elif was.state is State.CREATING:
                await destroy(backend, id)
                await self._service.cleanup.finalize(row, None)
            elif was.state is State.RESTORING:
                await self._service.restore.complete(row)
            elif lives:
                await destroy(backend, id)

    async def _adopt(self, rows: list[Row]) -> None:
        """Ahead of the first use, which waits for its own sandbox only."""
        left = iter(rows)

        async def some() -> None:
            for row in left:
                with logged("adopt", row.id):  # the first use gets the error
                    await self._running.get_or_adopt(row)

        await asyncio.gather(*(some() for _ in range(_AT_ONCE)))

    async def _pauses(self) -> None:
        """Correct pauses: a daemon that died may not have recorded that a sandbox stands still, or goes on."""
        for row in await self._running.check_all(tuple(row for row in self._store.list() if row.state in LIVE)):
            now = self._store.get(row.id)
            if row.state is State.RUNNING and now is not None and now.state is State.PAUSED:
                # When it resumed is unknown; the backend, asked to resume a running one, returns the deadline.
                await self._running.resume(now, await self._running.get_or_adopt(now))

    def _asked(self) -> Iterator[Backend]:
        """Yield the backends that rows name, and that work."""
        for backend in map(self._backends.find, sorted(self._store.backends())):
            if backend is not None and backend.probe() is None:
                yield backend

    async def _try(self, what: str, step: Callable[[], Awaitable[None]]) -> None:
        try:
            await step()
        except (PaddockError, OSError) as error:
            self._tell("recovery.failed", error, what)

    def _tell(self, event: str, error: Exception, *what: str) -> None:
        with suppress(UnrecordedError):  # a full disk: then nothing was done either
            self._audit.event(event, message=": ".join((*what, type(error).__name__, str(error)))[:1024])


def _has_begun(row: Row, before: Row | None) -> bool:
    """Tell whether it was made, restored, or woken from disk since `before` was read."""
    seen = (row.state, row.hibernated, row.instance_id)
    return before is None or (before.state, before.hibernated, before.instance_id) != seen
