"""The service's side of pausing a container: what it asks of pid 1, and what it was told. That all stands still is seen
from outside: nothing that is said inside is taken for it."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import math
from collections.abc import AsyncGenerator, Callable

from paddock.backends._base import Paused
from paddock.backends._stillness import Stillness
from paddock.backends.guest import Nothing, Place, Request
from paddock.backends.guest import orders as pid1
from paddock.backends.guest._channel import Channel
from paddock.backends.guest._connection import GuestConnection
from paddock.errors import PaddockError, PlatformError, SandboxDied, SandboxError
from paddock.wire.guest import StillnessReply, TimesReply

from ._birth import CONTROL
from ._records import Record, Records

_AGAIN_SECONDS = 1.0


class Rest:
    """Of one container. `stands` asks the kernel."""

    def __init__(self, record: Record, records: Records, stands: Callable[[], bool]) -> None:
        self._id, self._incarnation, self._records = record.id, record.incarnation, records
        self._socket, self._stands = records.place(record.id) / f"{CONTROL}.sock", stands
        self.stillness = Stillness()
        if record.left_seconds is not None:
            self.stillness.begin()
        self._connection: GuestConnection | None = None
        self._connecting = asyncio.Lock()
        self._awake: dict[int, Channel] = {}
        self._holds = itertools.count()

    async def follow(self) -> None:
        """Is told of every pause, whoever made it, and of every end of one. Returns when pid 1 is gone."""
        while True:
            try:
                channel = await self._open(pid1.stillness(self.stillness.now))
                told = await channel.reply(StillnessReply)
            except OSError:
                return
            except PaddockError:
                await asyncio.sleep(_AGAIN_SECONDS)
            else:
                self.seen(told.paused != 0)
                with contextlib.suppress(
                    PaddockError, OSError
                ):  # it has ended, or the disk is full: who asks next notes it
                    self._note(told)

    def seen(self, paused: bool) -> None:
        if paused:
            self.stillness.begin()
        else:
            self.stillness.end()

    async def pause(self) -> Paused:
        times = await self._call(pid1.pause())
        await self._check()
        self.stillness.begin()
        record = self._note(times)
        return Paused(record.left_seconds, record.deadline)

    async def resume(self) -> float:
        times = await self._call(pid1.resume())
        self.stillness.end()
        return self._note(times).deadline

    async def ask_times(self) -> None:
        """Have what pid 1 says of its TTL written down."""
        self._note(await self._call(pid1.times()))

    async def stay_awake(self) -> Callable[[], None]:
        hold = next(self._holds)

        def let_go() -> None:
            if (kept := self._awake.pop(hold, None)) is not None:
                kept.close()

        try:
            self._awake[hold] = channel = await self._open(pid1.awake())
            with channel.attended():
                times = await channel.reply(TimesReply)
        except OSError:
            raise _dead() from None
        except BaseException:
            let_go()
            raise
        self.stillness.end()
        self._note(times)
        return let_go

    @contextlib.asynccontextmanager
    async def hold(self, seconds: int) -> AsyncGenerator[None]:
        """It stands still for as long as the block takes; PlatformError at its end if it did not throughout."""
        try:
            channel = await self._open(pid1.hold(seconds))
        except OSError:
            raise _dead() from None
        try:
            with channel.attended():
                await channel.reply(Nothing)
            await self._check()
            yield
            if channel.has_ended:
                raise PlatformError(
                    f"the sandbox did not stand still for as long as it took ({seconds} s at most)", hint="try again"
                )
        finally:
            channel.close()
        with channel.attended():
            await channel.ended()

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()

    async def _check(self) -> None:
        if not await asyncio.to_thread(self._stands):
            raise SandboxError("not all of the sandbox stands still, although its pid 1 says so", hint="try again")

    def _note(self, times: TimesReply | StillnessReply) -> Record:
        left, deadline = pid1.seconds(times.left), pid1.seconds(times.deadline)
        record = self._records.note_times(self._id, self._incarnation, left, math.inf if deadline is None else deadline)
        if record is None:
            raise _dead()
        return record

    async def _call(self, order: Request) -> TimesReply:
        try:
            return await (await self._open(order)).call(TimesReply)
        except OSError:
            raise _dead() from None

    async def _open(self, request: Request) -> Channel:
        """OSError: nobody is there any more."""
        async with self._connecting:
            if self._connection is None or self._connection.closed:
                self._connection = await GuestConnection.connect(self._socket, Place())
                for hold in self._awake:  # of a connection that was lost
                    self._awake[hold] = self._connection.open(pid1.awake())
        return self._connection.open(request)


def _dead() -> PaddockError:
    return SandboxDied("the sandbox is gone", hint="`paddock ls --all` says why")
