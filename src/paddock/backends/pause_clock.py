"""Measure how long a sandbox has been paused, as this process knows: timeouts leave that time out."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextvars import copy_context
from functools import partial
from typing import TypeVar

T = TypeVar("T")


class PauseClock:
    """Hold the pauses of one sandbox. It belongs to the event loop that reports them."""

    def __init__(self) -> None:
        self._total = 0.0
        self._since: float | None = None
        self._runs = asyncio.Event()
        self._runs.set()
        self._heard: list[Callable[[], object]] = []

    def hear(self, call: Callable[[], object]) -> Callable[[], None]:
        """Call `call` at each beginning of a pause, and now if it is paused, in this context. Return a function that
        ends this."""
        begun = partial(copy_context().run, call)
        if self.now:
            begun()
        self._heard.append(begun)
        return partial(self._heard.remove, begun)

    @property
    def now(self) -> bool:
        """Whether it stands still at this moment."""
        return self._since is not None

    def begin(self) -> None:
        if self._since is None:
            self._since = _now()
            self._runs.clear()
            for call in tuple(self._heard):
                call()

    def end(self) -> None:
        self._total, self._since = self.seconds, None
        self._runs.set()

    def set(self, paused: bool) -> None:
        """Note whether it is paused, as was just seen."""
        if paused:
            self.begin()
        else:
            self.end()

    @property
    def seconds(self) -> float:
        """In all, until now."""
        return self._total + (0.0 if self._since is None else _now() - self._since)

    async def over(self) -> None:
        """Wait until it does not stand still."""
        await self._runs.wait()


class Stopwatch:
    """Count time since it was made, except while the sandbox is paused."""

    def __init__(self, pause_clock: PauseClock) -> None:
        self._pause_clock, self._start = pause_clock, _now()
        self._stood = pause_clock.seconds

    async def left(self, seconds: float) -> float:
        """Return what is left of so many seconds. If the sandbox is paused, wait until it isn't."""
        await self._pause_clock.over()
        stood = self._pause_clock.seconds - self._stood
        return seconds - (_now() - self._start - stood)


async def within(seconds: float, pause_clock: PauseClock, wait: Callable[[], Awaitable[T]]) -> T | None:
    """Return what `wait` returns, or None after so many seconds, except those in which the sandbox is paused. It is
    called again after a pause."""
    left, stopwatch = seconds, Stopwatch(pause_clock)
    while left > 0:
        timeout = asyncio.timeout(left)
        try:
            async with timeout:
                return await wait()
        except TimeoutError:
            if not timeout.expired():
                raise
        left = await stopwatch.left(seconds)
    return None


def _now() -> float:
    return asyncio.get_running_loop().time()
