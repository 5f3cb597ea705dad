"""Names what stopped the daemon's event loop: a note with the stack, in the log and in `daemon status`."""

from __future__ import annotations

import asyncio
import logging
import selectors
import sys
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path

STOPPED_SECONDS = 0.1
_LOOK_SECONDS = 0.05
_MOST_SKIPPED = 3
_NOTE_SECONDS = 60.0  # at most one note for each place in that time
_PACKAGE = str(Path(__file__).parents[2])
_log = logging.getLogger("paddock")

Note = Callable[[str], None]


class Watchdog:
    """Watches the event loop of the thread that makes it, from another thread. While the loop waits, that thread waits
    without a timeout, so an idle daemon uses no processor time."""

    def __init__(self, note: Note = _log.warning) -> None:
        self.stops, self.last_stop = 0, ""
        self._note = note
        self._loop_thread = threading.get_ident()
        self.step_began: float | None = None  # None: the loop waits
        self._loop_runs = threading.Event()
        self._noted: dict[str, float] = {}

    def new_loop(self) -> asyncio.AbstractEventLoop:
        return asyncio.SelectorEventLoop(_Selector(self))

    def start(self) -> None:
        """Start the thread. The daemon calls this once it serves, because its start delays only the first request."""
        threading.Thread(target=self._watch_loop, name="watchdog", daemon=True).start()

    @property
    def is_idle(self) -> bool:
        return not self._loop_runs.is_set()

    def wake(self) -> None:
        self._loop_runs.set()

    def _watch_loop(self) -> None:
        reported: float | None = None
        while self._loop_runs.wait():
            time.sleep(_LOOK_SECONDS)
            began = self.step_began
            if began is None:
                self._loop_runs.clear()
                if self.step_began is not None:  # a step began before the line above
                    self.wake()
            elif began != reported and time.monotonic() - began >= STOPPED_SECONDS:
                reported = began
                self._stopped()

    def _stopped(self) -> None:
        frame = sys._current_frames().get(self._loop_thread)  # pyright: ignore[reportPrivateUsage]
        if frame is None:
            return
        stack = [line for line in reversed(traceback.extract_stack(frame)) if not line.filename.startswith("<frozen")]
        place = _name(next((line for line in stack if line.filename.startswith(_PACKAGE)), stack[0]))
        now = time.monotonic()
        if now - self._noted.get(place, -_NOTE_SECONDS) >= _NOTE_SECONDS:
            self._noted[place] = now
            trace = " < ".join(map(_name, stack))  # one line of the log
            self._note(f"the event loop is stopped for more than {STOPPED_SECONDS * 1000:.0f} ms at {place}: {trace}")
        self.last_stop = place
        self.stops += 1


def _name(line: traceback.FrameSummary) -> str:
    return f"{line.filename.removeprefix(_PACKAGE).lstrip('/')}:{line.lineno} {line.name}"


class _Selector(selectors.EpollSelector):
    """Tells the watchdog when the loop begins to wait, and when a step begins. While the loop has
    steps to do, only every fourth call polls: a request is a few steps, and each poll costs a system call."""

    def __init__(self, watchdog: Watchdog) -> None:
        super().__init__()
        self._watchdog = watchdog
        self._skipped = 0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        watchdog, polls = self._watchdog, timeout != 0 or self._skipped == _MOST_SKIPPED
        self._skipped = 0 if polls else self._skipped + 1
        watchdog.step_began = None
        try:
            return super().select(timeout) if polls else []
        finally:
            watchdog.step_began = time.monotonic()
            if watchdog.is_idle:
                watchdog.wake()

    def close(self) -> None:
        self._watchdog.step_began = None
        super().close()
