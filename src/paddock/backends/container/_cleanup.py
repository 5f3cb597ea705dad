"""The remains of a dead container: the reason of its end, and its files, which paddock copies to the pool."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable

from paddock.backends.base import Ending
from paddock.errors import ErrandFailedError, PaddockError, PlatformError, SandboxDiedError, logged
from paddock.linux import proc
from paddock.model import Limit, SandboxId

from ._engine import Engine, at_rest, ending_of, missing, state_of
from ._records import Record, Records
from ._transfer import TreeTransfer, owner

_KILLED = Ending(limit=None, reason="it was killed")
_UNMADE = Ending(limit=None, reason="who made it died before it was complete")
_SILENT = Ending(limit=None, reason="it ended by itself; its engine does not know why")
_REMOVED = "its container was removed by somebody else, with what was new in its workspace"


class Cleanup:
    """Copies files out of dead containers. `locks` are the sandboxes' locks. Their holder may change the containers."""

    def __init__(
        self,
        records: Records,
        open: Callable[[], Awaitable[Engine]],
        transfer: TreeTransfer,
        locks: dict[SandboxId, asyncio.Lock],
    ) -> None:
        self._records, self._open, self._transfer, self._locks = records, open, transfer, locks

    async def settled(self, id: SandboxId, instance_id: int) -> None:
        """Wait until the pool has the files of a dead container.

        Raises PlatformError if only the container has them.
        """
        async with self._locks.setdefault(id, asyncio.Lock()):
            if self._owing(id, instance_id) is not None:
                await self.take_out(await self._open(), id, instance_id)

    async def settle_quietly(self, record: Record) -> None:
        with logged("settle the end", record.id):  # the next look tries again
            await self.settled(record.id, record.instance_id)

    async def take_out(
        self, engine: Engine, id: SandboxId, instance_id: int, *, then: Callable[[], Awaitable[None]] | None = None
    ) -> None:
        """Take a dead sandbox's files out of its container, then call `then`.

        If another task does it, wait for that one. Each container is done only once, because the task removes it.
        """
        async with contextlib.AsyncExitStack() as alone:
            try:
                await alone.enter_async_context(self._records.alone(id, "carry"))
            except SandboxDiedError:
                return  # that has removed all of it
            if (record := self._owing(id, instance_id)) is not None:
                await self._take_out(engine, record)
            if then is not None and self._records.read(id, instance_id) is not None:
                await then()

    def _owing(self, id: SandboxId, instance_id: int) -> Record | None:
        """Return the record of a dead container with files to copy. A successor under the same id doesn't count."""
        record = self._records.read(id, instance_id)
        return None if record is None or not record.owes or record.lives() else record

    async def _take_out(self, engine: Engine, record: Record) -> None:
        if not await at_rest(engine, record.container):
            self._records.change(record.id, record.instance_id, carried=True, lost=_REMOVED)
            return
        lost = ""
        try:
            await self._transfer.out(
                record.id, record.trees, owner(record.template), lambda path: engine.archive(record.container, path)
            )
        except ErrandFailedError as error:
            lost = error.message
        except PlatformError as error:
            if await state_of(engine, record.container) is None:
                lost = _REMOVED
            elif missing(error):
                lost = "its workspace had been removed inside"
            else:
                raise
        self._records.change(record.id, record.instance_id, carried=True, lost=lost)

    async def ending(self, id: SandboxId, instance_id: int) -> Ending:
        record = self._records.read(id, instance_id)
        if record is not None and record.lost:
            return Ending(limit=None, reason=f"it ended, and {record.lost}")
        if record is None or record.killed == "caller":
            return _KILLED
        if record.killed == "deadline" or (record.pid and proc.boottime() >= record.deadline):
            if record.left_seconds is not None:
                return Ending(limit=Limit.RETENTION, reason="it was paused for as long as paused sandboxes are kept")
            return Ending(limit=Limit.TTL, reason="its time was up")
        if not record.pid:
            return _UNMADE
        if record.boot != proc.boot_id():
            return Ending(limit=None, reason="the machine was restarted")
        try:
            return await ending_of(await self._open(), record.container)
        except PaddockError:
            return _SILENT
