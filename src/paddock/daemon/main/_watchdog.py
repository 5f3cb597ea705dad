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
_MOST_PASSED = 3
_NOTE_SECONDS = 60.0  # at most one note for each place in that time
_PACKAGE = str(Path(__file__).parents[2])
_log = logging.getLogger("paddock")

Note = Callable[[str], None]


class Watchdog:
    """Watches the loop of the thread that makes it. The thread that looks waits without a timeout while the loop does,
    so an idle daemon isn't woken."""

    def __init__(self, note: Note = _log.warning) -> None:
        self.stops, self.last_stop = 0, ""
        self._note = note
        self._loop_thread = threading.get_ident()
        self.since: float | None = None  # when the loop's step began; None: the loop waits
        self.is_asleep = True
        self._awake = threading.Event()
        self._noted: dict[str, float] = {}

    def new_loop(self) -> asyncio.AbstractEventLoop:
        return asyncio.SelectorEventLoop(_Selector(self))

    def start(self) -> None:
        """Begin to look: once the daemon serves. Its start holds up no client's request but the first."""
        threading.Thread(target=self._look, name="watchdog", daemon=True).start()

    def wake(self) -> None:
        self.is_asleep = False
        self._awake.set()

    def _look(self) -> None:
        known: float | None = None
        while self._awake.wait():
            time.sleep(_LOOK_SECONDS)
            since = self.since
            if since is None:
                self._awake.clear()
                self.is_asleep = True
                if self.since is not None:  # a step began before the line above
                    self.wake()
            elif since != known and time.monotonic() - since >= STOPPED_SECONDS:
                known = since
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
            shown = " < ".join(map(_name, stack))  # one line of the log
            self._note(f"the event loop is stopped for more than {STOPPED_SECONDS * 1000:.0f} ms at {place}: {shown}")
        self.last_stop = place
        self.stops += 1


def _name(line: traceback.FrameSummary) -> str:
    return f"{line.filename.removeprefix(_PACKAGE).lstrip('/')}:{line.lineno} {line.name}"


class _Selector(selectors.EpollSelector):
    """Tells the watchdog when the loop begins to wait, and when a step begins. A loop that has steps to do hears of
    descriptors only every fourth time: a request is a few steps, and each time costs a system call."""

    def __init__(self, watchdog: Watchdog) -> None:
        super().__init__()
        self._watchdog = watchdog
        self._passed = 0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        watchdog, asks = self._watchdog, timeout != 0 or self._passed == _MOST_PASSED
        self._passed = 0 if asks else self._passed + 1
        watchdog.since = None
        try:
            return super().select(timeout) if asks else []
        finally:
            watchdog.since = time.monotonic()
            if watchdog.is_asleep:
                watchdog.wake()

    def close(self) -> None:
        self._watchdog.since = None
        super().close()
