"""Pausing, and waking on use.

A row says `paused` before its sandbox stands still, and `running` after it goes on: wherever that is broken off, the
next use wakes what is perhaps awake already, and nothing that stands is taken for running. What a backend pauses by
itself, for idleness, is seen in what the backend says. How much of the TTL is left is the backend's word too: the row
has it after the sandbox stands still, and loses it before it says `running`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

from paddock.audit import AuditLog
from paddock.backends._base import Paused
from paddock.errors import InvalidState, PaddockError, SandboxDied
from paddock.model import ExecInfo, SandboxId, State

from ._clock import Clock
from ._gate import Entry
from ._held import Held
from ._lifecycle import Lifecycle
from ._store import Row, Store
from ._ttl import paused, running


class Sleeping:
    def __init__(
        self,
        *,
        store: Store,
        lifecycle: Lifecycle,
        audit: AuditLog,
        clock: Clock,
        without_values: Callable[[Sequence[str]], Sequence[str]],
    ) -> None:
        self._store, self._lifecycle, self._audit, self._clock = store, lifecycle, audit, clock
        self._without_values = without_values

    async def pause(self, row: Row, held: Held, *, force: bool = False) -> Row:
        """Returns when it stands still, or somebody has used it meanwhile. SandboxDied; InvalidState: commands run in
        it, and it is not to be done by `force`."""
        held.backend.capabilities.require("pause", held.backend.name)
        async with held.turning:
            if not force:
                await self.refuse_while_busy(row, held)
            row = self._move(row, State.PAUSED)
            try:
                known = await held.instance.pause()
            except SandboxDied:
                raise
            except BaseException:
                self._move(row, State.RUNNING)
                raise
            now = self._store.get(row.id) or row
            if now.state is State.RUNNING:  # another service has woken it before it stood still
                await held.instance.resume()
                return now
            return self._timed(paused(now, self._clock, known))

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
        words = " ".join(self._without_values(command.argv))
        text = "".join(one if one.isprintable() else "?" for one in words[:_NAME_CHARS])
        return f"{text} ({command.id}{', in the background' if command.background else ''})"

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

    def seen(self, row: Row, known: Mapping[SandboxId, Paused]) -> Row:
        """What is recorded, corrected by what the backend says. Somebody may be about to pause what still runs: that
        is told, and not recorded."""
        if row.state is State.RUNNING and row.id in known:
            with suppress(InvalidState):  # it has ended, or another service was quicker
                row = self._lifecycle.move(row, State.PAUSED, only_from=_LIVE)
                self._audit.event("sandbox.slept", sandbox=row.id, message=_why(row))
        elif row.state is State.PAUSED and row.id not in known:
            return running(row, self._clock).told_as(State.RUNNING)
        if row.state is State.PAUSED and row.sandbox.left_seconds is None and (times := known.get(row.id)) is not None:
            row = self._timed(paused(row, self._clock, times))
        return row

    async def _goes_on(self, row: Row, held: Held) -> Row:
        """It was resumed, and that is recorded. Another service's pause may have come between the two: that one has not
        seen the record yet, and who comes later will, so it is resumed once more."""
        row = self._timed(running(self._store.get(row.id) or row, self._clock, await held.instance.resume()))
        row = self._move(row, State.RUNNING)
        await held.instance.resume()
        return row

    def _timed(self, row: Row) -> Row:
        return row if self._store.set_deadline(row) else self._store.get(row.id) or row

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
_NAMED = 5
_NAME_CHARS = 60


def _why(row: Row) -> str:
    idle = row.sandbox.spec.idle_seconds
    return "it was found paused" if idle is None else f"nobody had used it for {idle:g} s"
