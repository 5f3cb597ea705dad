"""Where the time goes, and where tests make it end: every step of a create passes through one `Steps`."""

from __future__ import annotations

import json
import os
import signal
import socket
import time
from typing import NoReturn

DONE = "done"


class InjectedFault(Exception):
    """A test asked for a failure at this step."""


class Steps:
    """Names the steps of one create in order, with the seconds each took.

    `fault` is `<step>` to raise at that step, or `<step>!` to die there as by SIGKILL.
    It is honoured only by a keeper that was started for tests. `voice` is where a child tells its failure.
    """

    __slots__ = ("_fault", "_last", "seconds", "voice")

    def __init__(self, fault: str = "") -> None:
        self.seconds: dict[str, float] = {}
        self.voice: socket.socket | None = None
        self._fault = fault
        self._last = time.perf_counter()

    def report(self) -> bytes:
        """Seconds of each step, as JSON."""
        return json.dumps({"seconds": self.seconds}).encode()

    def begin(self, step: str) -> None:
        """Called before the step's work."""
        if self._fault and self._fault.rstrip("!") == step:
            if self._fault.endswith("!"):
                os.kill(os.getpid(), signal.SIGKILL)
                os._exit(137)  # pid 1 of a namespace is spared its own signals
            raise InjectedFault(step)

    def end(self, step: str) -> None:
        """Called after the step's work; the time since the last `end` is the step's."""
        now = time.perf_counter()
        self.seconds[step] = now - self._last
        self._last = now


def report_failure(steps: Steps, error: BaseException) -> NoReturn:
    """Tells the keeper, and ends this process."""
    done = list(steps.seconds)
    report = {
        "error": f"{type(error).__name__}: {error}",
        "errno": error.errno if isinstance(error, OSError) else None,
        "after": done[-1] if done else "clone",
    }
    try:
        assert steps.voice is not None
        steps.voice.send(json.dumps(report).encode())
    finally:
        os._exit(1)
