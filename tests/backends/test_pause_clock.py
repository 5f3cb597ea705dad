"""Time in which a sandbox stands still does not count."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from paddock.backends.guest.connection import SilenceLimit
from paddock.backends.pause_clock import PauseClock, Stopwatch


class Time:
    """A loop's clock, turned by hand."""

    def __init__(self) -> None:
        self.now = 1000.0

    def time(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Time:
    time = Time()
    monkeypatch.setattr("paddock.backends.pause_clock._now", time.time)
    return time


def test_a_stopwatch_leaves_out_what_it_stood_still(clock: Time) -> None:
    async def scene() -> None:
        pause_clock = PauseClock()
        pause_clock.begin()
        clock.now += 50  # before it was begun to count
        stopwatch = Stopwatch(pause_clock)
        clock.now += 5
        pause_clock.end()
        clock.now += 3
        pause_clock.begin()
        pause_clock.begin()
        clock.now += 7
        pause_clock.end()
        pause_clock.end()
        clock.now += 1
        assert await stopwatch.left(10.0) == 6.0
        assert pause_clock.seconds == 62.0

    asyncio.run(scene())


def test_what_is_left_is_known_when_it_goes_on(clock: Time) -> None:
    async def scene() -> None:
        pause_clock = PauseClock()
        stopwatch = Stopwatch(pause_clock)
        clock.now += 4
        pause_clock.begin()
        async with asyncio.TaskGroup() as others:
            asked = others.create_task(stopwatch.left(10.0))
            for _ in range(5):
                await asyncio.sleep(0)
            assert not asked.done()
            clock.now += 100
            pause_clock.end()
        assert asked.result() == 6.0

    asyncio.run(scene())


def test_nobody_loses_patience_with_what_is_known_to_stand_still() -> None:
    async def scene() -> None:
        lost: list[object] = []
        pause_clock = PauseClock()
        connection = SimpleNamespace(
            patience_seconds=600.0, heard_at=0.0, ping=lambda: None, pause_clock=pause_clock, closed=False
        )
        patience = SilenceLimit(cast("Any", connection), cast("Any", SimpleNamespace(give_up=lost.append)), 60.0)
        look = patience._look  # pyright: ignore[reportPrivateUsage]
        for stands in (True, False):
            if stands:
                pause_clock.begin()
            else:
                pause_clock.end()
            with patience:
                patience._asked = asyncio.get_running_loop().time() + 1.0  # pyright: ignore[reportPrivateUsage]
                look()
            assert bool(lost) is not stands

    asyncio.run(scene())
