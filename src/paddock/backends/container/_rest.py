"""The service's side of pausing a container: what it asks of pid 1, and what it was told. That all stands still is seen
from outside: nothing that is said inside is taken for it."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import AsyncGenerator, Callable
from pathlib import Path

import msgspec

from paddock.backends._guest import GuestConnection
from paddock.backends._guest_channel import Channel
from paddock.backends._stillness import Stillness
from paddock.errors import PaddockError, PlatformError, SandboxDied, SandboxError

_AGAIN_SECONDS = 1.0


class _Told(msgspec.Struct, frozen=True):
    paused: bool


class Rest:
    """Of one container. `stands` asks the kernel."""

    def __init__(self, place: Path, stands: Callable[[], bool]) -> None:
        self._socket, self._stands = place / "init.sock", stands
        self.stillness = Stillness()
        self._connection: GuestConnection | None = None
        self._connecting = asyncio.Lock()
        self._awake: dict[int, Channel] = {}
        self._holds = itertools.count()

    async def follow(self) -> None:
        """Is told of every pause, whoever made it, and of every end of one. Returns when pid 1 is gone."""
        while True:
            try:
                channel = await self._open({"op": "stillness", "paused": self.stillness.now})
                told = await channel.reply(_Told)
            except OSError:
                return
            except PaddockError:
                await asyncio.sleep(_AGAIN_SECONDS)
            else:
                self.seen(told.paused)

    def seen(self, paused: bool) -> None:
        if paused:
            self.stillness.begin()
        else:
            self.stillness.end()

    async def pause(self) -> None:
        await self._call("pause")
        await self._check()
        self.stillness.begin()

    async def resume(self) -> None:
        await self._call("resume")
        self.stillness.end()

    async def stay_awake(self) -> Callable[[], None]:
        hold = next(self._holds)

        def let_go() -> None:
            if (kept := self._awake.pop(hold, None)) is not None:
                kept.close()

        try:
            self._awake[hold] = channel = await self._open({"op": "awake"})
            with channel.attended():
                await channel.reply(dict)
        except OSError:
            raise _dead() from None
        except BaseException:
            let_go()
            raise
        self.stillness.end()
        return let_go

    @contextlib.asynccontextmanager
    async def hold(self, seconds: int) -> AsyncGenerator[None]:
        """It stands still for as long as the block takes; PlatformError at its end if it did not throughout."""
        try:
            channel = await self._open({"op": "hold", "seconds": seconds})
        except OSError:
            raise _dead() from None
        try:
            with channel.attended():
                await channel.reply(dict)
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

    async def _call(self, operation: str) -> None:
        try:
            await (await self._open({"op": operation})).call(dict)
        except OSError:
            raise _dead() from None

    async def _open(self, request: dict[str, object]) -> Channel:
        """OSError: nobody is there any more."""
        async with self._connecting:
            if self._connection is None or self._connection.closed:
                self._connection = await GuestConnection.connect(self._socket)
                for hold in self._awake:  # of a connection that was lost
                    self._awake[hold] = self._connection.open({"op": "awake"})
        return self._connection.open(request)


def _dead() -> PaddockError:
    return SandboxDied("the sandbox is gone", hint="`paddock ls --all` says why")
