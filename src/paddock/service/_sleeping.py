"""Pausing, and waking on use. The caller holds the lane of the sandbox.

A row says `paused` once its sandbox stands still, and `running` once it goes on. What a backend pauses by itself, for
idleness, and what the daemon had no time to record before it died, is seen in what the backend says.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from contextlib import suppress

from paddock.backends._base import Backend, Instance, Paused
from paddock.errors import InvalidState, PaddockError, ResourceExhausted, SandboxDied
from paddock.model import ExecInfo, SandboxId, State, replace

from ._context import Component, Context
from ._gate import Entry
from ._secret_leases import Leases
from ._store import Row
from ._ttl import paused, running

_log = logging.getLogger("paddock")


class Held:
    """One live instance."""

    def __init__(self, row: Row, backend: Backend, instance: Instance) -> None:
        self.id, self.row, self.backend, self.instance = row.id, row, backend, instance
        self.limits = row.sandbox.spec.limits
        self.watch: asyncio.Task[None] | None = None
        self.door: asyncio.Task[None] | None = None
        """Serves the programs inside that may have children."""
        self.dying = False
        """A verb is killing it, and will record that."""

    def tell_of_pauses(self) -> Callable[[], None]:
        """Tell the caller for whom this task works when the sandbox is paused, until what is returned is called."""
        return self.instance.stillness.hear(self._tell_of_pause)

    def _tell_of_pause(self) -> None:
        name = self.row.sandbox.spec.name or self.id
        said = "sandbox %s is paused, and the command that you wait for stands still: paddock resume %s"
        _log.warning(said, name, name)


class Sleeping(Component):
    def __init__(self, context: Context, leases: Leases) -> None:
        super().__init__(context)
        self._leases = leases

    async def pause(self, row: Row, held: Held, *, force: bool = False) -> Row:
        """Returns when it stands still. SandboxDied; InvalidState: commands run in it, and it is not to be done by
        `force`."""
        held.backend.capabilities.require("pause", held.backend.name)
        if not force:
            await self.refuse_while_busy(row, held)
        known = await held.instance.pause()
        return self._timed(paused(self._record(row, State.PAUSED), self._clock, known))

    async def refuse_while_busy(self, row: Row, held: Held) -> None:
        """InvalidState names the commands that run in it. Nothing if it stands still already."""
        if held.instance.stillness.now:
            return
        name = row.sandbox.spec.name or row.id
        force = f"pause it all the same: paddock pause {name} --force"
        try:
            commands = [one for one in await held.instance.execs() if one.status is None]
        except SandboxDied:
            raise
        except PaddockError as error:
            raise InvalidState(f"what runs in sandbox {name} can't be told: {error.message}", hint=force) from None
        if commands:
            named = "; ".join(self._named(one) for one in commands[:_NAMED])
            more = f"; and {len(commands) - _NAMED} more" if len(commands) > _NAMED else ""
            runs = "1 command runs" if len(commands) == 1 else f"{len(commands)} commands run"
            raise InvalidState(
                f"{runs} in sandbox {name} and would stand still: {named}{more}",
                hint=force,
                sandbox=row.id,
                commands=[one.id for one in commands[:_NAMED]],
            )

    def _named(self, command: ExecInfo) -> str:
        words = " ".join(self._leases.without_values(command.argv))
        text = "".join(one if one.isprintable() else "?" for one in words[:_NAME_CHARS])
        return f"{text} ({command.id}{', in the background' if command.background else ''})"

    async def resume(self, row: Row, held: Held) -> Row:
        """SandboxDied, InvalidState."""
        held.backend.capabilities.require("pause", held.backend.name)
        return await self._goes_on(row, held)

    async def wake(self, row: Row, held: Held, entry: Entry) -> Row:
        """For a use. SandboxDied, InvalidState."""
        row = await self._goes_on(row, held)
        self._audit.event("sandbox.woken", sandbox=row.id, message=None, decision=entry.number)
        return row

    async def rouse(self, held: Held) -> None:
        """For somebody who sends to a command or a port that he has had open since before it was paused."""
        await self._goes_on(held.row, held)
        self._audit.event("sandbox.woken", sandbox=held.id, message="something was sent to what runs in it")

    async def agree(self, row: Row, instance: Instance) -> None:
        """Tell a running sandbox the recorded deadline, if an `extend` did not come to its end or the disk was full."""
        if row.state is State.RUNNING and not instance.stillness.now:
            with suppress(PaddockError):  # the next adoption tries again
                await instance.set_deadline((self._store.get(row.id) or row).deadline)

    def seen(self, row: Row, known: Mapping[SandboxId, Paused]) -> Row:
        """What is recorded, corrected by what the backend says. It holds no lane: a pause may have come since the
        backend was asked, so that it runs is told and not recorded. Whoever has changed the row since knows better."""
        if row.state is State.RUNNING and row.id in known:
            if (now := self._store.get(row.id)) is not None and now != row:
                return now
            with suppress(InvalidState):  # it has ended meanwhile
                row = self._record(row, State.PAUSED)
                self._audit.event("sandbox.slept", sandbox=row.id, message=_why(row))
        elif row.state is State.PAUSED and row.id not in known:
            goes_on = running(row, self._clock)
            return replace(goes_on, sandbox=replace(goes_on.sandbox, state=State.RUNNING))
        if row.state is State.PAUSED and row.sandbox.left_seconds is None and (times := known.get(row.id)) is not None:
            row = self._timed(paused(row, self._clock, times))
        return row

    async def _goes_on(self, row: Row, held: Held) -> Row:
        deadline = await held.instance.resume()
        row = self._store.get(row.id) or row
        try:
            return self._record(self._timed(running(row, self._clock, deadline)), State.RUNNING)
        except ResourceExhausted:
            await self.agree(row, held.instance)
            raise

    def _timed(self, row: Row) -> Row:
        return row if self._store.set_deadline(row) else self._store.get(row.id) or row

    def _record(self, row: Row, state: State) -> Row:
        """The row as it is then. InvalidState: it has ended, or is being made again."""
        now = self._store.get(row.id) or row
        return now if now.state is state and not now.asleep else self._store.move(row, state)


_NAMED = 5
_NAME_CHARS = 60


def _why(row: Row) -> str:
    idle = row.sandbox.spec.idle_seconds
    return "it was found paused" if idle is None else f"nobody had used it for {idle:g} s"
