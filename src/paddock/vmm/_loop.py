"""One poll loop: descriptors, signals, timers and coroutines of a process that has no threads."""

from __future__ import annotations

import contextlib
import heapq
import itertools
import os
import select
import signal
import time
from collections.abc import Callable, Coroutine, Generator

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

IN = select.EPOLLIN
OUT = select.EPOLLOUT
_AT_ONCE = 64

Ready = Callable[[int], None]


class Failed(Exception):
    """A step has failed. The text says why."""


FAILURES = (Failed, OSError, ValueError)
"""Exceptions by which a step reports its failure. Any other is a fault of ours."""


class Outcome:
    """The outcome of a step, settled once. A coroutine that awaits it gets its value, or Failed."""

    def __init__(self) -> None:
        self.settled = False
        self.value: Any = None
        self._why: str | None = None
        self.then: Callable[[], None] = lambda: None

    def succeed(self, value: Any = None) -> None:
        """Settle it. Without effect on a settled one, as `fail`."""
        self._settle(value, None)

    def fail(self, why: str) -> None:
        self._settle(None, why)

    def _settle(self, value: Any, why: str | None) -> None:
        if not self.settled:
            self.settled, self.value, self._why = True, value, why
            self.then()

    def __await__(self) -> Generator[Outcome, None, Any]:
        if not self.settled:
            yield self
        if self._why is not None:
            raise Failed(self._why)
        return self.value


class Loop:
    """Calls the registered callbacks until `stop`.

    It reports a callback that raises, and stops watching its descriptor. The other callbacks go on.
    """

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._ready: dict[int, Ready] = {}
        self._soon: list[Callable[[], None]] = []
        self._timers: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self._running = True

    def watch(self, fd: int, events: int, ready: Ready) -> None:
        """`ready(events)` whenever one of `events` (or an error, or a hang-up) is there. Replaces an earlier watch."""
        if fd in self._ready:
            self._epoll.modify(fd, events)
        else:
            self._epoll.register(fd, events)
        self._ready[fd] = ready

    def unwatch(self, fd: int) -> None:
        """Stop watching a descriptor, before the caller closes it. Without effect for an unwatched one."""
        if self._ready.pop(fd, None) is not None:
            self._epoll.unregister(fd)

    def soon(self, callback: Callable[[], None]) -> None:
        """Run a callback in the next round, after the ready descriptors."""
        self._soon.append(callback)

    def after(self, seconds: float, callback: Callable[[], None]) -> None:
        """Call it after so many seconds of CLOCK_BOOTTIME."""
        heapq.heappush(self._timers, (boottime() + seconds, next(self._order), callback))

    def outcome(self, seconds: float, late: str) -> Outcome:
        """Return one that fails after so many seconds, and says `late`."""
        outcome = Outcome()
        self.after(seconds, lambda: outcome.fail(f"{late} within {seconds:.0f} seconds"))
        return outcome

    def start(self, work: Coroutine[Outcome, None, None]) -> None:
        """Run a coroutine, which awaits outcomes alone."""

        def step() -> None:
            with contextlib.suppress(StopIteration):
                work.send(None).then = lambda: self.soon(step)

        self.soon(step)

    async def readable(self, fd: int) -> None:
        """Wait until there is something to read, or an end."""
        outcome = Outcome()
        self.watch(fd, IN, outcome.succeed)
        await outcome
        self.unwatch(fd)

    def stop(self) -> None:
        self._running = False

    def run(self) -> None:
        while self._running:
            soon, self._soon = self._soon, []
            for callback in soon:
                self._call(callback)
            for fd, events in self._epoll.poll(self._timeout()):
                ready = self._ready.get(fd)
                if ready is not None:  # else: unwatched by an earlier callback of this round
                    try:
                        ready(events)
                    except Exception as error:
                        report(error)
                        self.unwatch(fd)
            self._run_timers()

    def _call(self, callback: Callable[[], None]) -> None:
        try:
            callback()
        except Exception as error:
            report(error)

    def _timeout(self) -> float:
        if self._soon or not self._running:
            return 0
        if not self._timers:
            return -1
        # epoll's clock stands still in suspend, ours does not: look again at least every minute.
        return min(max(self._timers[0][0] - boottime(), 0.0), 60.0)

    def _run_timers(self) -> None:
        while self._timers and self._timers[0][0] <= boottime():
            self._call(heapq.heappop(self._timers)[2])


def boottime() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class ChildWatch:
    """Calls `died(pid, wait_status)` for every dead child. It reaps all children."""

    def __init__(self, loop: Loop, died: Callable[[int, int], None]) -> None:
        self._loop, self._died = loop, died
        self._reader, self._writer = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        signal.set_wakeup_fd(self._writer, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, _noted)
        loop.watch(self._reader, IN, self._wake)

    def _wake(self, events: int) -> None:
        with contextlib.suppress(BlockingIOError):
            os.read(self._reader, 4096)
        self.reap()

    def reap(self) -> None:
        for _ in range(_AT_ONCE):
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            self._died(pid, status)
        self._loop.soon(self.reap)  # there may be no end of them: others want to be served too


def report(error: BaseException) -> None:
    with contextlib.suppress(OSError):
        os.write(2, described(error))


def described(error: BaseException) -> bytes:
    # Not by `traceback`: it reads source files by name, which are the attacker's inside.
    frame, lines = error.__traceback__, [f"paddock guest: {type(error).__name__}: {error}"]
    while frame is not None:
        lines.append(f"  {frame.tb_frame.f_code.co_filename}:{frame.tb_lineno}")
        frame = frame.tb_next
    return "\n".join(lines).encode("utf-8", "backslashreplace") + b"\n"


def _noted(number: int, frame: object) -> None:
    """Do nothing: the wake-up descriptor only works with a handler."""
