"""Recordings of what a sandbox is answered from outside: the gateway's, begun and taken here."""

from __future__ import annotations

from paddock.errors import InvalidState
from paddock.model import Recording, StartRecording, TakeRecording

from ._doors import Doors
from ._gate import Entry
from ._store import Row


class Recordings:
    def __init__(self, doors: Doors | None) -> None:
        self._doors = doors

    async def perform(self, action: StartRecording | TakeRecording, row: Row, entry: Entry) -> Recording | None:
        if self._doors is None or row.sandbox.policy is None:
            raise InvalidState(f"{row.id} has no network: there is nothing to record", hint="paddock policy set")
        if isinstance(action, StartRecording):
            await self._doors.start_recording(row)
            return None
        taken = await self._doors.take_recording(row)
        entry.done({"exchanges": len(taken.exchanges), "omitted": len(taken.omitted)})
        return taken
