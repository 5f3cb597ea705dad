"""Where the time goes, and where tests make it end: every step of a create passes through one `Steps`."""

from __future__ import annotations

import os
import signal
import time


class InjectedFault(Exception):
    """A test asked for a failure at this step."""


class Steps:
    """Names the steps of one create in order, with the seconds each took.

    `fault` is `<step>` to raise at that step, or `<step>!` to die there as by SIGKILL.
    It is honoured only by a keeper that was started for tests.
    """

    __slots__ = ("_fault", "_last", "seconds")

    def __init__(self, fault: str = "") -> None:
        self.seconds: dict[str, float] = {}
        self._fault = fault
        self._last = time.perf_counter()

    def begin(self, step: str) -> None:
        """Called before the step's work."""
        if self._fault and self._fault.rstrip("!") == step:
            if self._fault.endswith("!"):
                os.kill(os.getpid(), signal.SIGKILL)
            raise InjectedFault(step)

    def end(self, step: str) -> None:
        """Called after the step's work; the time since the last `end` is the step's."""
        now = time.perf_counter()
        self.seconds[step] = now - self._last
        self._last = now
