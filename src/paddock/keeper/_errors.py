"""What goes wrong when a jail is made."""

from __future__ import annotations

from paddock.keeper._trace import Steps


class JailError(Exception):
    """A jail could not be made; nothing of it is left. `errno` is the kernel's number where there is one."""

    def __init__(self, message: str, errno: int | None = None) -> None:
        super().__init__(message)
        self.errno = errno


class MountError(JailError):
    """A directory of the host that cannot be mounted: the caller's to put right."""


class Died(JailError):
    """Its processes ended without a word: killed from outside, or by the kernel."""


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
