"""Progress messages on stderr for operations of more than a second. Without a terminal there are none."""

from __future__ import annotations

import contextlib
import os
import sys
import time

from . import _render

TYPE_CHECKING = False
if TYPE_CHECKING:
    import threading
    from collections.abc import Generator

_PATIENCE_SECONDS = 1.0
_STEP_SECONDS = 0.2
_MARKS = "|/-\\"


class Progress:
    """One line that updates in place. `moved` adds bytes to it, and `operation` names the operation."""

    def __init__(self, operation: str) -> None:
        self.operation = operation
        self._began = time.monotonic()
        self._bytes = 0

    def moved(self, count: int) -> None:
        self._bytes += count

    def show(self, over: threading.Event) -> None:
        """Show it on the terminal until `over`."""
        if over.wait(_PATIENCE_SECONDS):
            return
        with contextlib.suppress(OSError):
            from itertools import cycle

            for mark in cycle(_MARKS):
                os.write(2, f"\r\x1b[K{mark} {self._line()}".encode())
                if over.wait(_STEP_SECONDS):
                    break
            os.write(2, b"\r\x1b[K")

    def _line(self) -> str:
        seconds = time.monotonic() - self._began
        rate = f", {_render.size(self._bytes)}, {_render.size(self._bytes / seconds)}/s" if self._bytes else ""
        text = _render.escape(f"{self.operation} ({seconds:.0f} s{rate})")
        try:
            columns = os.get_terminal_size(2).columns
        except OSError:
            columns = 80
        return text[: max(columns - 3, 10)]


@contextlib.contextmanager
def progress(operation: str) -> Generator[Progress]:
    """Show progress during a block that may take long."""
    shown = Progress(operation)
    if not (sys.stderr is not None and sys.stderr.isatty()):  # pyright: ignore[reportUnnecessaryComparison]
        yield shown
        return
    import logging
    import threading

    class Listener(logging.Handler):
        """Shows the library's log messages: the reasons of delays, and afterwards its warnings."""

        def emit(self, record: logging.LogRecord) -> None:
            if record.levelno >= logging.WARNING:
                warnings.append(record.getMessage())
            shown.operation = record.getMessage()

    warnings: list[str] = []
    logger, listener, over = logging.getLogger("paddock"), Listener(logging.INFO), threading.Event()
    thread = threading.Thread(target=shown.show, args=(over,), daemon=True)
    level = logger.level
    logger.addHandler(listener)
    logger.setLevel(logging.INFO)
    thread.start()
    try:
        yield shown
    finally:
        over.set()
        thread.join()
        logger.removeHandler(listener)
        logger.setLevel(level)
        for warning in warnings:
            _render.note(warning)
