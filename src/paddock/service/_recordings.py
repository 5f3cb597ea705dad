"""Recordings of what a sandbox is answered from outside: the gateway's, begun and taken here."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

from paddock.errors import InvalidState, NotFound
from paddock.model import Recording, StartRecording, TakeRecording

from ._doors import Doors
from ._gate import Entry
from ._store import Row

T = TypeVar("T")


class Recordings:
    def __init__(self, doors: Doors | None, resume: Callable[[Row], Awaitable[None]]) -> None:
        """`resume` sees to the ways out of a sandbox."""
        self._doors, self._resume = doors, resume

    async def perform(self, action: StartRecording | TakeRecording, row: Row, entry: Entry) -> Recording | None:
        if self._doors is None or row.sandbox.policy is None:
            raise InvalidState(f"{row.id} has no network: there is nothing to record", hint="paddock policy set")
        if isinstance(action, StartRecording):
            await self._at_a_door(self._doors.start_recording, row)
            return None
        taken = await self._at_a_door(self._doors.take_recording, row)
        entry.done({"exchanges": len(taken.exchanges), "omitted": len(taken.omitted)})
        return taken

    async def _at_a_door(self, order: Callable[[Row], Awaitable[T]], row: Row) -> T:
        try:
            return await order(row)
        except NotFound:  # the gateway that had it has died, and nobody has opened it again yet
            await self._resume(row)
            return await order(row)
