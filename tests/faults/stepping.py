"""A process is stopped at its n-th step: each entry to and each return from a system call is one (ptrace(2)).

So that it can be killed at every step there is, and no step has to be named in the product.
"""

from __future__ import annotations

import ctypes
import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

_libc = ctypes.CDLL(None, use_errno=True)
_libc.ptrace.argtypes = (ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p)
_SEIZE, _INTERRUPT, _SYSCALL, _DETACH = 0x4206, 0x4207, 24, 17
_TRACESYSGOOD = 1
_WALL = 0x40000000
_AT_SYSCALL = signal.SIGTRAP | 0x80
PATIENCE_SECONDS = 60.0


class Operation:
    """Something that is done on a thread of its own, and what came of it: `value` or `error`."""

    def __init__(self, work: Callable[[], object]) -> None:
        self.value: object = None
        self.error: Exception | None = None
        self._thread = threading.Thread(target=self._do, args=(work,))
        self._thread.start()

    def _do(self, work: Callable[[], object]) -> None:
        try:
            self.value = work()
        except Exception as error:
            self.error = error

    @property
    def done(self) -> bool:
        return not self._thread.is_alive()

    def end(self) -> None:
        self._thread.join(PATIENCE_SECONDS)
        assert self.done, "it does not hang, whoever was killed"


class Stepper:
    """Follows one thread of a process, by its id as the caller sees it. To be used by one thread only."""

    def __init__(self, tid: int) -> None:
        self._tid = tid
        self._call(_SEIZE, _TRACESYSGOOD)
        self._call(_INTERRUPT)
        self._stopped = self._wait() is not None

    def go(self, steps: int, over: Callable[[], bool]) -> bool:
        """Lets it take that many; False if it was `over`, or the process dead, before."""
        while steps:
            if not self._stopped:
                return False
            self._resume()
            status = self._wait(over)
            if status is None:
                return False
            if os.WSTOPSIG(status) == _AT_SYSCALL:
                steps -= 1
        return self._stopped

    def let_go(self) -> None:
        """It runs on by itself, if it lives."""
        if not self._stopped and self._alive():
            self._call(_INTERRUPT)
            self._stopped = self._wait() is not None
        if self._stopped:
            self._call(_DETACH, self._signal, missing_ok=True)
            self._stopped = False
        if not self._alive():
            self.killed()

    def killed(self) -> None:
        """It was sent SIGKILL: its parent hears of that when we have."""
        self._stopped = False
        while self._wait() is not None:
            self._call(_SYSCALL, 0, missing_ok=True)

    _signal = 0

    def _resume(self) -> None:
        self._call(_SYSCALL, self._signal, missing_ok=True)
        self._signal, self._stopped = 0, False

    def _wait(self, over: Callable[[], bool] = lambda: False) -> int | None:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while time.monotonic() < deadline:
            try:
                pid, status = os.waitpid(self._tid, os.WNOHANG | _WALL)
            except ChildProcessError:
                return None
            if pid and not os.WIFSTOPPED(status):
                return None
            if pid:
                number = os.WSTOPSIG(status)
                self._stopped = True
                self._signal = number if number not in (_AT_SYSCALL, signal.SIGTRAP) and not status >> 16 else 0
                return status
            if over():
                return None
            time.sleep(0.0002)
        raise AssertionError("it takes no step")

    def _alive(self) -> bool:
        try:
            return Path(f"/proc/{self._tid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
        except OSError:
            return False

    def _call(self, request: int, data: int = 0, *, missing_ok: bool = False) -> None:
        if _libc.ptrace(request, self._tid, None, data) != 0:
            number = ctypes.get_errno()
            if not missing_ok:
                raise OSError(number, os.strerror(number))
