"""Pausing, and waking on use.

A row says `paused` before its sandbox stands still, and `running` after it goes on: wherever that is broken off, the
next use wakes what is perhaps awake already, and nothing that stands is taken for running. What a backend pauses by
itself, for idleness, is seen in what the backend says.
"""

from __future__ import annotations

from contextlib import suppress

from paddock.audit import AuditLog
from paddock.errors import InvalidState, SandboxDied
from paddock.model import SandboxId, State

from ._gate import Entry
from ._held import Held
from ._lifecycle import Lifecycle
from ._store import Row, Store


class Sleeping:
    def __init__(self, *, store: Store, lifecycle: Lifecycle, audit: AuditLog) -> None:
        self._store, self._lifecycle, self._audit = store, lifecycle, audit

    async def pause(self, row: Row, held: Held) -> Row:
        """Returns when it stands still, or somebody has used it meanwhile. SandboxDied, InvalidState."""
        held.backend.capabilities.require("pause", held.backend.name)
        async with held.turning:
            row = self._move(row, State.PAUSED)
            try:
                await held.instance.pause()
            except SandboxDied:
                raise
            except BaseException:
                self._move(row, State.RUNNING)
                raise
            now = self._store.get(row.id) or row
            if now.state is State.RUNNING:  # another service has woken it before it stood still
                await held.instance.resume()
            return now

    async def resume(self, row: Row, held: Held) -> Row:
        """SandboxDied, InvalidState."""
        held.backend.capabilities.require("pause", held.backend.name)
        async with held.turning:
            await held.instance.resume()
            return await self._goes_on(row, held)

    async def wake(self, row: Row, held: Held, entry: Entry) -> Row:
        """For a use: until the outcome of that is known it stays awake. SandboxDied, InvalidState."""
        idles = row.sandbox.spec.idle_seconds is not None
        if row.state is State.RUNNING and not idles and not held.turning.locked():
            return row
        async with held.turning:
            row = self._store.get(row.id) or row
            stood = row.state is State.PAUSED or held.instance.stillness.now
            if idles:
                entry.at_the_end(await held.instance.stay_awake())
            elif stood:
                await held.instance.resume()
            if stood:
                row = await self._goes_on(row, held)
                self._audit.event("sandbox.woken", sandbox=row.id, message=None, decision=entry.number)
            return row

    async def rouse(self, held: Held) -> None:
        """For somebody who sends to a command or a port that he has had open since before it was paused."""
        async with held.turning:
            if not held.instance.stillness.now:
                return
            await held.instance.resume()
            await self._goes_on(held.row, held)
            self._audit.event("sandbox.woken", sandbox=held.id, message="something was sent to what runs in it")

    def seen(self, row: Row, paused: frozenset[SandboxId]) -> Row:
        """What is recorded, corrected by what the backend says. Somebody may be about to pause what still runs: that
        is told, and not recorded."""
        if row.state is State.RUNNING and row.id in paused:
            with suppress(InvalidState):  # it has ended, or another service was quicker
                row = self._lifecycle.move(row, State.PAUSED, only_from=_LIVE)
                self._audit.event("sandbox.slept", sandbox=row.id, message=_why(row))
        elif row.state is State.PAUSED and row.id not in paused:
            return row.told_as(State.RUNNING)
        return row

    async def _goes_on(self, row: Row, held: Held) -> Row:
        """It was resumed, and that is recorded. Another service's pause may have come between the two: that one has not
        seen the record yet, and who comes later will, so it is resumed once more."""
        row = self._move(row, State.RUNNING)
        await held.instance.resume()
        return row

    def _move(self, row: Row, to: State) -> Row:
        """The row as it is then, if it is not so already. InvalidState: somebody has it in hand, to make it again."""
        known = self._store.get(row.id)
        if known is not None and known.incarnation == row.incarnation:
            row = known
        try:
            return row if row.state is to else self._lifecycle.move(row, to, only_from=_LIVE)
        except InvalidState:
            now = self._store.get(row.id)
            if now is not None and now.state is to and now.incarnation == row.incarnation:
                return now  # another service did it in this moment
            raise


_LIVE = (State.RUNNING, State.PAUSED)


def _why(row: Row) -> str:
    idle = row.sandbox.spec.idle_seconds
    return "it was found paused" if idle is None else f"nobody had used it for {idle:g} s"
