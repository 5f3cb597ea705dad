"""The few kernel calls that the standard library lacks."""

from __future__ import annotations

import ctypes
import os

_libc = ctypes.CDLL(None, use_errno=True)
_PR_SET_PDEATHSIG = 1
_PR_SET_DUMPABLE = 4
_PR_SET_CHILD_SUBREAPER = 36


def _prctl(option: int, value: int) -> None:
    unsigned = ctypes.c_ulong
    if _libc.prctl(option, unsigned(value), unsigned(0), unsigned(0), unsigned(0)) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def set_parent_death_signal(number: int) -> None:
    """prctl(2), PR_SET_PDEATHSIG. The parent may have died before: compare getppid afterwards."""
    _prctl(_PR_SET_PDEATHSIG, number)


def become_subreaper() -> None:
    """prctl(2), PR_SET_CHILD_SUBREAPER: orphans among our descendants become our children."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def set_dumpable(dumpable: bool) -> None:
    """prctl(2), PR_SET_DUMPABLE: whether others of the same user may look into this process."""
    _prctl(_PR_SET_DUMPABLE, int(dumpable))


def inotify_init() -> int:
    """A descriptor that neither blocks nor is inherited."""
    return _checked(_libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC))


def inotify_add_watch(fd: int, path: bytes, mask: int) -> int:
    return _checked(_libc.inotify_add_watch(fd, path, ctypes.c_uint32(mask)))


def _checked(result: int) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result
