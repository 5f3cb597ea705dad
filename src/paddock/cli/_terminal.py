"""Our terminal, lent to a command inside: raw during the command, and always restored."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import termios
import threading
import tty
from collections.abc import Callable, Generator
from enum import Enum
from types import FrameType

from paddock.model import PtySize

_WATCHED = (signal.SIGWINCH, signal.SIGTSTP, signal.SIGCONT)
_STOP = b"\0"
_STOP_SECONDS = 1.0
_READ_BYTES = 1 << 16


def size() -> PtySize:
    """Return the size of the terminal. Use the default for one without a size (a serial line)."""
    with contextlib.suppress(OSError):
        columns, rows = os.get_terminal_size(0)
        if columns and rows:
            return PtySize(rows=rows, columns=columns)
    return PtySize()


class Order(Enum):
    """A key sequence for us, not for the command: `~` at the beginning of a line, and one more key."""

    END = b"."
    SUSPEND = b"\x1a"
    HELP = b"?"


ESCAPES = "~. ends the session, ~^Z suspends it, ~~ is ~"


class Escapes:
    """Finds our key sequences in the input."""

    def __init__(self) -> None:
        self._fresh = True
        self._held = False

    def split(self, data: bytes) -> list[bytes | Order]:
        """Split input into parts and orders, in their sequence.

        A `~` that may begin an order waits for the next key.
        """
        parts: list[bytes | Order] = []
        passed = bytearray()
        for key in (data[i : i + 1] for i in range(len(data))):
            if self._held:
                self._held = False
                if key in {order.value for order in Order}:
                    parts += [bytes(passed), Order(key)]
                    passed.clear()
                    self._fresh = True
                    continue
                passed += b"~"
                if key == b"~":
                    self._fresh = False
                    continue
            elif self._fresh and key == b"~":
                self._held = True
                continue
            passed += key
            self._fresh = key in (b"\r", b"\n")
        return [part for part in (*parts, bytes(passed)) if part]


class TerminalInput:
    """Passes on keys and changes of the terminal, on a separate thread.

    `typed` and `resized` may block and may raise. `lost` runs when the terminal has gone, or after `~.`.
    """

    def __init__(
        self, typed: Callable[[bytes], object], resized: Callable[[PtySize], object], lost: Callable[[], object]
    ) -> None:
        self._typed, self._resized, self._lost = typed, resized, lost
        self._escapes = Escapes()
        self._near, self._far = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._thread = threading.Thread(target=self._run, daemon=True)

    @contextlib.contextmanager
    def lent(self) -> Generator[None]:
        """Send keys and the terminal's size inside during the block. Main thread only."""
        saved = termios.tcgetattr(0)
        handlers = {number: signal.getsignal(number) for number in _WATCHED}
        wakeup = signal.set_wakeup_fd(self._far, warn_on_full_buffer=False)
        try:
            # The kernel's own handler writes the signal's number. These only prevent our death.
            signal.signal(signal.SIGWINCH, lambda number, frame: None)
            signal.signal(signal.SIGTSTP, lambda number, frame: _stop(saved))
            signal.signal(signal.SIGCONT, _continued)
            tty.setraw(0, termios.TCSADRAIN)
            self._thread.start()
            yield
        finally:
            _give_back(saved)
            signal.set_wakeup_fd(wakeup)
            for number, handler in handlers.items():
                signal.signal(number, handler)
            os.write(self._far, _STOP)
            self._thread.join(_STOP_SECONDS)
            if not self._thread.is_alive():  # else it is writing still; it ends with us
                os.close(self._near)
                os.close(self._far)

    def _run(self) -> None:
        from paddock.errors import PaddockError

        try:
            self._pass_on()
        except (OSError, PaddockError):
            return  # the command has ended, or its sandbox: who waits for it learns that

    def _pass_on(self) -> None:
        self._resized(size())  # it may have changed since the command was told
        while True:
            ready, _, _ = select.select((0, self._near), (), ())
            if self._near in ready:
                signals = os.read(self._near, _READ_BYTES)
                if _STOP in signals:
                    return
                if {signal.SIGWINCH, signal.SIGCONT} & set(signals):
                    self._resized(size())
                continue  # keys that came after the end are not ours
            if not self._take_keys():
                self._lost()
                return

    def _take_keys(self) -> bool:
        try:
            data = os.read(0, _READ_BYTES)
        except BlockingIOError:
            return True
        except OSError:
            return False
        for part in self._escapes.split(data):
            match part:
                case Order.END:
                    return False
                case Order.SUSPEND:
                    os.kill(os.getpid(), signal.SIGTSTP)
                case Order.HELP:
                    os.write(2, f"\r\n{ESCAPES}\r\n".encode())
                case _:
                    self._typed(part)
        return bool(data)


def _give_back(saved: list[object]) -> None:
    # At once: waiting for the output would take forever without a reader.
    with contextlib.suppress(OSError, termios.error):
        termios.tcsetattr(0, termios.TCSANOW, saved)  # pyright: ignore[reportArgumentType]


def _stop(saved: list[object]) -> None:
    """Stop as a shell expects, with its terminal restored."""
    _give_back(saved)
    os.kill(os.getpid(), signal.SIGSTOP)


def _continued(number: int, frame: FrameType | None) -> None:
    with contextlib.suppress(OSError, termios.error):
        tty.setraw(0, termios.TCSADRAIN)
