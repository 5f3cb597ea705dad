"""Recordings of what a sandbox is answered from outside: the gateway's, begun and taken here."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

from paddock.errors import InvalidState, NotFound
from paddock.model import Recording, StartRecording, TakeRecording

from ._doors import Doors
from ._gate import Entry
from ._handlers import handles
from ._policies import Policies
from ._sandboxes import Sandboxes
from ._store import Row

T = TypeVar("T")


class Recordings:
    def __init__(self, sandboxes: Sandboxes, policies: Policies, doors: Doors | None) -> None:
        self._sandboxes, self._policies, self._doors = sandboxes, policies, doors

    @handles(StartRecording)
    async def start(self, action: StartRecording, entry: Entry) -> None:
        await self._order(Doors.start_recording, action.sandbox, entry)

    @handles(TakeRecording)
    async def take(self, action: TakeRecording, entry: Entry) -> Recording:
        taken = await self._order(Doors.take_recording, action.sandbox, entry)
        entry.done({"exchanges": len(taken.exchanges), "omitted": len(taken.omitted)})
        return taken

    async def _order(self, order: Callable[[Doors, Row], Awaitable[T]], sandbox: str, entry: Entry) -> T:
        row, _ = await self._sandboxes.reach(sandbox, entry)
        if self._doors is None or row.sandbox.policy is None:
            raise InvalidState(f"{row.id} has no network: there is nothing to record", hint="paddock policy set")
        try:
            return await order(self._doors, row)
        except NotFound:  # the gateway that had it has died, and nobody has opened it again yet
            await self._policies.resume(row)
            return await order(self._doors, row)
