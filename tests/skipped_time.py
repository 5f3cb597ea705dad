"""An event loop that skips the time in which nothing happens.

Its clock stands still while anything can run. So a limit is reached at once, and no delay of the machine reaches it.
Both sides of what is tested run in this loop: time that other processes and threads need is skipped, too.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any


def run(main: Coroutine[Any, Any, None]) -> None:
    """Run it as `asyncio.run` does."""
    with asyncio.Runner(loop_factory=_Loop) as runner:
        runner.run(main)


class _Loop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._selector_of_time = _Selector()
        super().__init__(self._selector_of_time)

    def time(self) -> float:
        return self._selector_of_time.now


class _Selector(selectors.EpollSelector):
    """Waits for a timer by turning the clock."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 1000.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None or timeout <= 0:
            return super().select(timeout)
        ready = super().select(0)
        if not ready:
            self.now += timeout
        return ready
