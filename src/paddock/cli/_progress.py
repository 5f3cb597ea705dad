"""Progress messages on stderr for operations of more than a second. Without a terminal there are none."""

from __future__ import annotations

import contextlib
import os
import sys
import time

from . import _render

TYPE_CHECKING = False
if TYPE_CHECKING:
    import logging
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

    def start(self) -> None:
        import threading

        self._over = threading.Event()
        self._thread = threading.Thread(target=self._show, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._over.set()
        self._thread.join()

    def _show(self) -> None:
        if self._over.wait(_PATIENCE_SECONDS):
            return
        with contextlib.suppress(OSError):
            from itertools import cycle

            for mark in cycle(_MARKS):
                os.write(2, f"\r\x1b[K{mark} {self._line()}".encode())
                if self._over.wait(_STEP_SECONDS):
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


def _listener(progress: Progress, warnings: list[str]) -> logging.Handler:
    """Print the library's log messages: the reasons of delays, and afterwards its warnings."""
    import logging

    class Listener(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if record.levelno >= logging.WARNING:
                warnings.append(record.getMessage())
            progress.operation = record.getMessage()

    return Listener(logging.INFO)


@contextlib.contextmanager
def progress(operation: str) -> Generator[Progress]:
    """Show progress during a block that may take long."""
    shown = Progress(operation)
    if not (sys.stderr is not None and sys.stderr.isatty()):  # pyright: ignore[reportUnnecessaryComparison]
        yield shown
        return
    import logging

    warnings: list[str] = []
    logger, listener = logging.getLogger("paddock"), _listener(shown, warnings)
    level = logger.level
    logger.addHandler(listener)
    logger.setLevel(logging.INFO)
    shown.start()
    try:
        yield shown
    finally:
        shown.stop()
        logger.removeHandler(listener)
        logger.setLevel(level)
        for warning in warnings:
            _render.note(warning)
