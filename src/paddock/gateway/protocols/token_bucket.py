"""A limit on how often something may happen, which allows a burst."""

from __future__ import annotations

import time
from collections.abc import Callable


class TokenBucket:
    """Holds up to `burst` tokens, full at first, and gets `per_second` new ones."""

    def __init__(self, per_second: float, burst: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._rate, self._burst, self._clock = per_second, burst, clock
        self._tokens, self._at = burst, clock()

    def take(self) -> bool:
        """Take a token. False: there is none."""
        now = self._clock()
        self._tokens = min(self._burst, self._tokens + (now - self._at) * self._rate)
        self._at = now
        if self._tokens < 1:
            return False
        self._tokens -= 1
        return True

    def give(self) -> None:
        """Put a token back."""
        self._tokens = min(self._burst, self._tokens + 1)
