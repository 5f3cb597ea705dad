"""Where the time goes, and where tests make it end: every step of a create passes through one `Steps`."""

from __future__ import annotations

import os
import signal
import time
from types import TracebackType


class InjectedFault(Exception):
    """A test asked for a failure at this step."""


class Steps:
    """Names the steps of one create in order, with the seconds each took.

    `fault` is `<step>` to raise at that step, or `<step>!` to die there as by SIGKILL.
    It is honoured only by a keeper that was started for tests.
    """

    __slots__ = ("_fault", "_last", "_step", "seconds")

    def __init__(self, fault: str = "") -> None:
        self.seconds: dict[str, float] = {}
        self._fault = fault
        self._step = ""
        self._last = time.perf_counter()

    @classmethod
    def of_keeper(cls, fault: str) -> Steps:
        """Those that the keeper takes itself: of faults, `keeper:<step>` is theirs."""
        return cls(fault.removeprefix("keeper:") if fault.startswith("keeper:") else "")

    def __call__(self, step: str) -> Steps:
        """The step that the block after `with` takes."""
        self._step = step
        return self

    def __enter__(self) -> None:
        if self._fault and self._fault.rstrip("!") == self._step:
            if self._fault.endswith("!"):
                os.kill(os.getpid(), signal.SIGKILL)
            raise InjectedFault(self._step)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if error is None:
            self.end(self._step)

    def end(self, step: str) -> None:
        """The time since the last `end` is the step's."""
        now = time.perf_counter()
        self.seconds[step] = now - self._last
        self._last = now
