"""What goes wrong when a jail is made."""

from __future__ import annotations

import errno

from paddock.keeper._trace import Steps
from paddock.linux import pidfd

_OF_THE_DYING = frozenset({errno.ENOENT, errno.ESRCH, errno.EINVAL, errno.ECONNRESET, errno.EPIPE, errno.ENOTCONN})
_DYING_SECONDS = 0.5


class JailError(Exception):
    """A jail could not be made; nothing of it is left. `errno` is the kernel's number where there is one."""

    def __init__(self, message: str, errno: int | None = None) -> None:
        super().__init__(message)
        self.errno = errno


class MountError(JailError):
    """A directory of the host that cannot be mounted: the caller's to put right."""


class Gone(Exception):
    """What is asked about has ended, or was never there."""

    def __init__(self, id: str) -> None:
        super().__init__(f"{id} is dead")


class Died(JailError):
    """Its processes ended without a word: killed from outside, or by the kernel."""


def died_of(error: BaseException, process: int) -> bool:
    """Whether `process`, a pidfd, is dead, so that its death may be what `error` comes of. Who is just dying has lost
    its namespaces and its sockets a moment before."""
    number = getattr(error, "errno", None)
    return pidfd.wait(process, _DYING_SECONDS if number in _OF_THE_DYING else 0)


def as_jail_error(error: Exception, steps: Steps) -> JailError:
    """Says after which step; notes of undo steps that failed come with it."""
    if isinstance(error, JailError):
        return error
    done = list(steps.seconds)
    number = error.errno if isinstance(error, OSError) else None
    failed = JailError(f"{type(error).__name__} after step {done[-1] if done else 'start'!r}: {error}", number)
    for note in getattr(error, "__notes__", ()):
        failed.add_note(note)
    return failed
