"""Name and time the steps of making a jail, and inject a fault at each for tests."""

from __future__ import annotations

import errno
import os
import signal
import time
from types import TracebackType

from paddock.linux import pidfd

_OF_THE_DYING = frozenset({errno.ENOENT, errno.ESRCH, errno.EINVAL, errno.ECONNRESET, errno.EPIPE, errno.ENOTCONN})
_DYING_SECONDS = 0.5


class JailError(Exception):
    """A jail could not be made, and nothing of it is left. `errno` is the kernel's number, if there is one."""

    def __init__(self, message: str, errno: int | None = None) -> None:
        super().__init__(message)
        self.errno = errno


class MountError(JailError):
    """A directory of the host can't be mounted. The caller can fix it."""


class Gone(Exception):
    """The sandbox has ended, or never existed."""

    def __init__(self, id: str) -> None:
        super().__init__(f"{id} is dead")


class Died(JailError):
    """Its processes died without a report: a signal from outside, or the kernel, killed them."""


class InjectedFault(Exception):
    """A test asked for a failure at this step."""


class Steps:
    """Time the steps of one create, in order.

    `fault` is `<step>` to raise at that step, or `<step>!` to die there as by SIGKILL. Only a supervisor that was
    started for tests takes one.
    """

    __slots__ = ("_fault", "_last", "_step", "seconds")

    def __init__(self, fault: str = "") -> None:
        self.seconds: dict[str, float] = {}
        self._fault = fault
        self._step = ""
        self._last = time.perf_counter()

    @classmethod
    def of_supervisor(cls, fault: str) -> Steps:
        """Return the steps of the supervisor. Of all faults, `supervisor:<step>` concerns them."""
        return cls(fault.removeprefix("supervisor:") if fault.startswith("supervisor:") else "")

    def __call__(self, step: str) -> Steps:
        """Return the step that the block after `with` takes."""
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
        """End a step: the time since the last `end` is its time."""
        now = time.perf_counter()
        self.seconds[step] = now - self._last
        self._last = now


def died_of(error: BaseException, process: int) -> bool:
    """Tell whether the process of this pidfd is dead, so that its death may have caused `error`. A dying process loses
    its namespaces and sockets a moment before."""
    number = getattr(error, "errno", None)
    return pidfd.wait(process, _DYING_SECONDS if number in _OF_THE_DYING else 0)


def as_jail_error(error: Exception, steps: Steps) -> JailError:
    """Return `error` as a JailError that names the step. It keeps the notes of failed undo steps."""
    if isinstance(error, JailError):
        return error
    done = list(steps.seconds)
    number = error.errno if isinstance(error, OSError) else None
    failed = JailError(f"{type(error).__name__} after step {done[-1] if done else 'start'!r}: {error}", number)
    for note in getattr(error, "__notes__", ()):
        failed.add_note(note)
    return failed
