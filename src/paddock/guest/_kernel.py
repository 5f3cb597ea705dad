"""The few kernel calls that the standard library lacks."""

from __future__ import annotations

import ctypes
import os

_libc = ctypes.CDLL(None, use_errno=True)
_PR_SET_PDEATHSIG = 1
_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER = 22, 2


def _prctl(option: int, value: int) -> None:
    unsigned = ctypes.c_ulong
    if _libc.prctl(option, unsigned(value), unsigned(0), unsigned(0), unsigned(0)) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def set_parent_death_signal(number: int) -> None:
    """prctl(2), PR_SET_PDEATHSIG. The parent may have died before: compare getppid afterwards."""
    _prctl(_PR_SET_PDEATHSIG, number)


def install_filter(program: bytes) -> None:
    """seccomp(2): a compiled filter more, for the caller and all that it starts. Needs no_new_privs."""

    class Program(ctypes.Structure):
        _fields_ = (("length", ctypes.c_ushort), ("instructions", ctypes.c_char_p))

    filter = Program(len(program) // 8, program)
    _checked(_libc.prctl(_PR_SET_SECCOMP, ctypes.c_ulong(_SECCOMP_MODE_FILTER), ctypes.byref(filter), 0, 0))


def _checked(result: int) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result
