"""The watchdog names what stops the event loop, once for each place, and leaves an idle loop alone."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any

from paddock.daemon.main._watchdog import Watchdog
from tests.orphans import wait_until


class Notes(list[str]):
    """Lets a stopped loop go on once the watchdog has noted it: no test depends on how long that takes."""

    def __init__(self) -> None:
        super().__init__()
        self.noted = threading.Event()

    def __call__(self, note: str) -> None:
        self.append(note)
        self.noted.set()


def _run(watchdog: Watchdog, work: Coroutine[Any, Any, None]) -> None:
    watchdog.start()
    with asyncio.Runner(loop_factory=watchdog.new_loop) as runner:
        runner.run(work)


def test_a_stopped_loop_is_named_with_its_stack() -> None:
    notes = Notes()
    watchdog = Watchdog(notes)

    def a_blocking_call() -> None:
        assert notes.noted.wait(60)

    async def work() -> None:
        a_blocking_call()

    _run(watchdog, work())
    assert "a_blocking_call" in notes[0]
    assert watchdog.stops >= 1
    assert watchdog.last_stop


def test_one_place_is_noted_once_a_minute_and_counted_each_time() -> None:
    notes = Notes()
    watchdog = Watchdog(notes)
    places: set[str] = set()

    def stop(before: int) -> None:
        assert wait_until(lambda: watchdog.stops > before)

    async def work() -> None:
        for _ in range(3):
            stop(watchdog.stops)
            places.add(watchdog.last_stop)
            await asyncio.sleep(0)

    _run(watchdog, work())
    assert watchdog.stops >= 3
    noted = [note.partition(" ms at ")[2].partition(": ")[0] for note in notes]
    assert len(noted) == len(set(noted))
    assert set(noted) >= places


def test_an_idle_loop_is_not_woken() -> None:
    watchdog = Watchdog(Notes())

    async def work() -> None:
        # Blocks in a thread: the loop has nothing to do until that ends. The thread sees that the watchdog waits.
        assert await asyncio.to_thread(wait_until, lambda: watchdog.is_idle)

    _run(watchdog, work())
