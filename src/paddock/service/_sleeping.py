"""Pausing, and waking on use. The caller holds the lane of the sandbox.

A row says `paused` once its sandbox stands still, and `running` once it goes on. What a backend pauses by itself, for
idleness, and what the daemon had no time to record before it died, is seen in what the backend says.
"""

from __future__ import annotations

from contextlib import suppress

from msgspec.structs import replace

from paddock.audit import AuditLog
from paddock.errors import InvalidState
from paddock.model import SandboxId, State

from ._gate import Entry
from ._held import Held
from ._lifecycle import Lifecycle
from ._store import Row, Store


class Sleeping:
    def __init__(self, *, store: Store, lifecycle: Lifecycle, audit: AuditLog) -> None:
        self._store, self._lifecycle, self._audit = store, lifecycle, audit

    async def pause(self, row: Row, held: Held) -> Row:
        """Returns when it stands still. SandboxDied, InvalidState."""
        held.backend.capabilities.require("pause", held.backend.name)
        await held.instance.pause()
        return self._record(row, State.PAUSED)

    async def resume(self, row: Row, held: Held) -> Row:
        """SandboxDied, InvalidState."""
        held.backend.capabilities.require("pause", held.backend.name)
        await held.instance.resume()
        return self._record(row, State.RUNNING)

    async def wake(self, row: Row, held: Held, entry: Entry) -> Row:
        """For a use. SandboxDied, InvalidState."""
        await held.instance.resume()
        self._audit.event("sandbox.woken", sandbox=row.id, message=None, decision=entry.number)
        return self._record(row, State.RUNNING)

    async def rouse(self, held: Held) -> None:
        """For somebody who sends to a command or a port that he has had open since before it was paused."""
        await held.instance.resume()
        self._record(held.row, State.RUNNING)
        self._audit.event("sandbox.woken", sandbox=held.id, message="something was sent to what runs in it")

    def seen(self, row: Row, paused: frozenset[SandboxId]) -> Row:
        """What is recorded, corrected by what the backend says. It holds no lane: a pause may have come since the
        backend was asked, so that it runs is told and not recorded."""
        if row.state is State.RUNNING and row.id in paused:
            with suppress(InvalidState):  # it has ended meanwhile
                row = self._record(row, State.PAUSED)
                self._audit.event("sandbox.slept", sandbox=row.id, message=_why(row))
        elif row.state is State.PAUSED and row.id not in paused:
            return replace(row, sandbox=replace(row.sandbox, state=State.RUNNING))
        return row

    def _record(self, row: Row, state: State) -> Row:
        """The row as it is then. InvalidState: it has ended, or is being made again."""
        now = self._store.get(row.id) or row
        return now if now.state is state and not now.asleep else self._lifecycle.move(row, state)


def _why(row: Row) -> str:
    idle = row.sandbox.spec.idle_seconds
    return "it was found paused" if idle is None else f"nobody had used it for {idle:g} s"
