"""The start of a serving process: only the necessary descriptors, default signals, and no more imports.

It also has kernel calls that the standard library lacks.
"""

from __future__ import annotations

import ctypes
import gc
import os
import signal
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, NoReturn

_libc = ctypes.CDLL(None, use_errno=True)
_PR_SET_PDEATHSIG = 1
_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER = 22, 2


def prepare_process(keep: tuple[int, ...], *, fatal_imports: bool = False) -> None:
    parent = os.getppid()
    if parent:
        set_parent_death_signal(signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)
    close_others(keep)
    signal.set_wakeup_fd(-1)
    for number in range(1, signal.NSIG):
        if signal.getsignal(number) in (signal.SIG_IGN, signal.default_int_handler):
            signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    os.umask(0o022)
    seal_imports(fatal=fatal_imports)
    gc.freeze()
    gc.enable()  # the supervisor that we were forked from collects nothing, and every command leaves a cycle or two


def close_others(keep: tuple[int, ...]) -> None:
    """Every descriptor above 2 but these."""
    low = 3
    for fd in sorted(fd for fd in keep if fd > 2):
        os.closerange(low, fd)
        low = fd + 1
    os.closerange(low, 1 << 30)


class Sealed:
    """The only remaining finder: after pivot_root a file with a given name may be the attacker's.

    `fatal`, for tests: end the process, because code could hide an ImportError.
    """

    def __init__(self, *, fatal: bool) -> None:
        self._fatal = fatal

    def find_spec(self, name: str, path: object = None, target: object = None) -> NoReturn:
        if self._fatal:
            os.write(2, f"import of {name} after the seal\n".encode())
            os._exit(77)
        raise ImportError(f"{name} is not imported yet, and nothing is imported any more", name=name)


def seal_imports(*, fatal: bool = False) -> None:
    """Seal imports: present modules stay usable, and this process and its forks can import no others.

    A first seal stays.
    """
    finders: list[Any] = sys.meta_path
    if not any(isinstance(finder, Sealed) for finder in finders):
        finders[:] = [Sealed(fatal=fatal)]
        sys.path_hooks.clear()
        sys.path_importer_cache.clear()
        sys.path.clear()


def set_parent_death_signal(number: int) -> None:
    """prctl(2), PR_SET_PDEATHSIG. The parent may have died before: compare getppid afterwards."""
    _checked(_libc.prctl(_PR_SET_PDEATHSIG, ctypes.c_ulong(number), 0, 0, 0))


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
