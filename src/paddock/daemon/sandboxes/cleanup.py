"""End a sandbox: record its end, and remove what it had."""

from __future__ import annotations

import asyncio
import os

from paddock.backends.base import Ending
from paddock.daemon.access.approvals import Approvals
from paddock.daemon.access.gateways import Gateways
from paddock.daemon.clock import boot_id
from paddock.daemon.context import Component, Context
from paddock.daemon.store.database import Row, has_ended
from paddock.daemon.tasks import in_thread
from paddock.errors import InvalidStateError, PaddockError, ResourceExhaustedError, logged
from paddock.model import Limit, State, replace
from paddock.supervisor.layout import OUTPUTS

from .snapshots import Snapshots

_MOST_REMOVALS = 16
_REMOVED_AT_ONCE = 3  # the other threads are for callers


class Cleanup(Component):
    def __init__(self, context: Context, gateways: Gateways, snapshots: Snapshots, approvals: Approvals) -> None:
        super().__init__(context)
        self._gateways, self._snapshots, self._approvals = gateways, snapshots, approvals
        self.outputs = self._state_dir / OUTPUTS
        self._removals: set[asyncio.Task[None]] = set()
        self._removing = asyncio.Semaphore(_REMOVED_AT_ONCE)
        self._unrecorded: dict[str, tuple[State, Limit | None, str]] = {}
        """How and why those have ended of which the audit log says so, and the row not yet: the disk was full."""

    async def finalize(self, row: Row, ending: Ending | None, *, audited: bool = False) -> Row:
        """Record that a sandbox has ended, and clean up after it. A recorded end stays.

        Without an Ending the backend has no trace of it, and only the clock tells. `audited`: the audit log has the end
        already.
        """
        now = self._store.get(row.id) or row
        if has_ended(now):
            row = now  # another request was first
        else:
            verdict = self._unrecorded.get(row.id)
            if verdict is None:
                verdict = state, limit, reason = self._verdict(row, ending)
                if not audited:
                    detail = {"state": state.value, "limit": limit and limit.value, "reason": reason}
                    self._audit.event("sandbox.ended", sandbox=row.id, **detail)
                    self._unrecorded[row.id] = verdict
            try:
                row = self._record(row, *verdict)
            except InvalidStateError:
                self._unrecorded.pop(row.id, None)
                return now  # it was made again since `row` was read
        await self.clean_up(row)
        return row

    def _record(self, row: Row, state: State, limit: Limit | None, reason: str) -> Row:
        """Record an end that the audit log has. On a full disk the row follows when there is room.

        Raises InvalidStateError if it has ended otherwise, or was restored since `row` was read. Raises
        ResourceExhaustedError if only its row shows that it lives: it is hibernated or being restored.
        """
        try:
            ended = self._store.move(row, state, limit=limit, reason=reason)
        except ResourceExhaustedError:
            if row.restoring is not None:
                raise
            self._unrecorded[row.id] = state, limit, reason
            sandbox = replace(row.sandbox, state=state, limit=limit, reason=reason, ended_at=self._clock.wall())
            return replace(row, sandbox=sandbox)
        self._unrecorded.pop(row.id, None)
        return ended

    async def clean_up(self, row: Row) -> None:
        """Remove what an ended sandbox leaves: network, trees, outputs, the backend's record of it. Idempotent."""
        if row.sandbox.policy is not None:
            self._gateways.forget(row)
            with logged("withdraw its questions", row.id):
                await self._approvals.withdraw(row.id)
            with logged("record the changes", row.id):  # on a full disk: what is dead is buried all the same
                await self._snapshots.record_changes(row, row.own_trees, "end", own=True)
        await self._start_removal(row)
        if row.instance_id or row.restoring is not None:  # it may have slept on disk
            await self._snapshots.discard_hibernation(row.id)
        backend = self._backends.find(row.sandbox.backend)
        if backend is not None and row.id not in self._unrecorded:  # until then only the backend knows of its end
            await backend.forget(row.id)

    async def _start_removal(self, row: Row) -> None:
        """Have its trees and outputs deleted. A caller waits for that only if many wait to be deleted. A sweep deletes
        what this daemon leaves."""
        while len(self._removals) >= _MOST_REMOVALS and not self._tasks.closed:
            await asyncio.wait(self._removals, return_when=asyncio.FIRST_COMPLETED)
        if self._tasks.closed:
            return
        removal = self._tasks.start(self._remove(row), name=f"delete the trees of {row.id}", finishes=True)
        self._removals.add(removal)
        removal.add_done_callback(self._removals.discard)

    async def _remove(self, row: Row) -> None:
        def remove() -> None:
            for tree in row.own_trees:
                pool.delete(tree)
            self.remove_outputs(row.id)

        pool = self._pool()
        pool.in_use.update(row.own_trees)  # a sweep that comes meanwhile would report them
        try:
            async with self._removing:
                await in_thread(remove)
        finally:
            pool.in_use.difference_update(row.own_trees)

    def overdue(self, row: Row) -> bool:
        """Tell whether the time of a hibernated sandbox is over: only its row keeps it."""
        if row.boot_id != boot_id():
            return self._clock.wall() >= row.sandbox.expires_at
        return self._clock.boottime() >= row.deadline

    def remove_outputs(self, id: str) -> None:
        """Delete the outputs of a sandbox: a flat directory of files, if there is one."""
        folder = f"{self.outputs}/{id}"
        try:
            with os.scandir(folder) as files:
                for file in files:
                    os.unlink(file.path)
            os.rmdir(folder)
        except OSError:
            pass  # not there; or an exec that ends this moment writes into it: the next sweep takes it

    def _verdict(self, row: Row, ending: Ending | None) -> tuple[State, Limit | None, str]:
        if ending is not None:
            return State.KILLED, ending.limit, ending.reason
        if row.state is State.CREATING:
            return State.FAILED, None, "the daemon that was making it died"
        if row.boot_id != boot_id():
            return State.KILLED, None, "the machine was restarted"
        if self._clock.boottime() >= row.deadline and row.sandbox.left_seconds is None:
            return State.KILLED, Limit.TTL, "its time to live was over"
        return State.FAILED, None, "it is gone, and no daemon recorded why"


def message_of(error: BaseException) -> str:
    """Return the text that a row keeps of a failure."""
    if isinstance(error, PaddockError):
        return error.message
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
