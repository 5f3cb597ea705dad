"""Whether there is anything to look after: an idle daemon isn't woken."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable


class Activity:
    """`lives` tells whether a sandbox lives, on disk too."""

    def __init__(self, lives: Callable[[], bool]) -> None:
        self._lives = lives
        self._waiting: set[asyncio.Event] = set()

    def note(self) -> None:
        """A request has come."""
        for one in self._waiting:
            one.set()

    @property
    def rests(self) -> bool:
        """Whether every series of `rounds` waits for a request."""
        return not any(one.is_set() for one in self._waiting)

    async def rounds(self, seconds: float) -> AsyncGenerator[None]:
        """Yield every `seconds` while a sandbox lives or requests come, and once after that."""
        due = asyncio.Event()
        due.set()
        self._waiting.add(due)
        while True:
            await due.wait()
            await asyncio.sleep(seconds)
            if not self._lives():
                due.clear()
            yield
