"""A person at a terminal: types, looks, resizes the window, and sees how the terminal is left."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Generator
from contextlib import contextmanager

PATIENCE_SECONDS = 60.0


class Screen:
    """`paddock ARGUMENTS` on a terminal of its own, of which it is the session leader."""

    def __init__(
        self,
        *arguments: str,
        rows: int = 30,
        columns: int = 90,
        python: tuple[str, ...] = ("-m", "paddock"),
        **environ: str,
    ) -> None:
        self.ours, self.theirs = pty.openpty()
        self.shown = bytearray()
        self._seen = 0
        self.resize(rows, columns, tell=False)
        self.modes = termios.tcgetattr(self.theirs)
        theirs = self.theirs
        self.process = subprocess.Popen(
            [sys.executable, *python, *arguments],
            preexec_fn=lambda: os.login_tty(os.dup(theirs)),
            env=dict(os.environ) | {"TERM": "xterm-256color"} | environ,
        )

    def type(self, text: str | bytes) -> None:
        """All of it, reading meanwhile what is shown: nobody could type into a terminal that is full."""
        data = text.encode() if isinstance(text, str) else text
        os.set_blocking(self.ours, False)
        deadline = time.monotonic() + PATIENCE_SECONDS
        while data:
            readable, writable, _ = select.select((self.ours,), (self.ours,), (), PATIENCE_SECONDS)
            assert time.monotonic() < deadline, self.tail()
            if readable:
                self._take()
            if writable:
                try:
                    data = data[os.write(self.ours, data[:4096]) :]
                except BlockingIOError:
                    continue

    def expect(self, text: str | bytes) -> bytes:
        """Waits until it is shown after all that was expected before; what was shown up to its end."""
        wanted = text.encode() if isinstance(text, str) else text
        deadline = time.monotonic() + PATIENCE_SECONDS
        while (at := self.shown.find(wanted, self._seen)) < 0:
            assert select.select((self.ours,), (), (), max(0.0, deadline - time.monotonic()))[0], self.tail()
            self._take()
        before, self._seen = self._seen, at + len(wanted)
        return bytes(self.shown[before : self._seen])

    def resize(self, rows: int, columns: int, *, tell: bool = True) -> None:
        fcntl.ioctl(self.theirs, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        if tell:  # the kernel tells the foreground group of a terminal's session: ours is another's
            self.process.send_signal(signal.SIGWINCH)

    def ends(self) -> int:
        """The exit code. What is still shown meanwhile is read."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while self.process.poll() is None:
            assert time.monotonic() < deadline, self.tail()
            if select.select((self.ours,), (), (), 0.02)[0]:
                self._take()
        while select.select((self.ours,), (), (), 0)[0]:
            self._take()
        return self.process.returncode

    @property
    def is_raw(self) -> bool:
        return not termios.tcgetattr(self.theirs)[3] & termios.ECHO

    @property
    def is_as_it_was(self) -> bool:
        return termios.tcgetattr(self.theirs) == self.modes

    def tail(self) -> str:
        return repr(bytes(self.shown[-2000:]))

    def _take(self) -> None:
        try:
            self.shown += os.read(self.ours, 65536)
        except BlockingIOError:
            pass


@contextmanager
def screen(*arguments: str, **options: object) -> Generator[Screen]:
    one = Screen(*arguments, **options)  # type: ignore[arg-type]
    try:
        yield one
    finally:
        one.process.kill()
        one.process.wait()
        os.close(one.ours)
        os.close(one.theirs)
