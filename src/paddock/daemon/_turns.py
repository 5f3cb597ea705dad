"""Turns: who floods one sandbox with requests waits, so that those about other sandboxes are served."""

from __future__ import annotations

import asyncio
from collections import deque

_YOUNG_SECONDS = 0.05
"""What takes longer is no flood: a request waits no longer than that."""
_RECENT_SECONDS = 0.1


class Turns:
    """While requests about other sandboxes come, one about a sandbox with a young request waits until that is done, or
    young no more."""

    def __init__(self) -> None:
        self._begun: dict[str, list[float]] = {}
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}
        self._last = self._before = ("", float("-inf"))
        """The two sandboxes that were asked about last, and when."""

    async def take(self, sandbox: str) -> float:
        """Wait for a turn. Return what `leave` takes."""
        loop = asyncio.get_running_loop()
        now = loop.time()
        if self._last[0] != sandbox:
            self._before = self._last
        self._last = sandbox, now
        if now - self._before[1] < _RECENT_SECONDS and self._is_crowded(sandbox, now):
            place: asyncio.Future[None] = loop.create_future()
            self._waiting.setdefault(sandbox, deque()).append(place)
            timer = loop.call_later(_YOUNG_SECONDS, self._grant, sandbox)
            try:
                await place
            finally:
                timer.cancel()
            now = loop.time()
        self._begun.setdefault(sandbox, []).append(now)
        return now

    def leave(self, sandbox: str, begun: float) -> None:
        times = self._begun[sandbox]
        times.remove(begun)
        if not times:
            del self._begun[sandbox]
        self._grant(sandbox)

    def _is_crowded(self, sandbox: str, now: float) -> bool:
        times = self._begun.get(sandbox)
        return sandbox in self._waiting or (times is not None and now - times[-1] < _YOUNG_SECONDS)

    def _grant(self, sandbox: str) -> None:
        """In the order in which they came."""
        queue = self._waiting.get(sandbox, deque())
        while queue and queue[0].done():  # its request was cancelled
            queue.popleft()
        if queue:
            queue.popleft().set_result(None)
        if not queue:
            self._waiting.pop(sandbox, None)
