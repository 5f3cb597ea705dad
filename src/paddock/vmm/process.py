"""The start of a serving process: default signals, and no more imports.

It also has kernel calls that the standard library lacks.
"""

from __future__ import annotations

import ctypes
import gc
import os
import signal
import sys
from struct import pack

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any, NoReturn

_libc = ctypes.CDLL(None, use_errno=True)
_PR_SET_PDEATHSIG = 1
_SECCOMP = {"x86_64": 317, "aarch64": 277}
_SET_MODE_FILTER, _NEW_LISTENER = 1, 8
# linux/bpf_common.h, linux/seccomp.h
LOAD, AND, JUMP_IF_EQUAL, RETURN = 0x20, 0x54, 0x15, 0x06
NUMBER, ARCHITECTURE, FIRST_ARGUMENT, THIRD_ARGUMENT = 0, 4, 16, 32
ALLOW = 0x7FFF_0000


def prepare_process(*, fatal_imports: bool) -> None:
    if parent := os.getppid():
        end_with(parent)
    for number in range(1, signal.NSIG):
        if signal.getsignal(number) in (signal.SIG_IGN, signal.default_int_handler):
            signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    os.umask(0o022)
    seal_imports(fatal=fatal_imports)
    gc.freeze()


def close_others(keep: tuple[int, ...]) -> None:
    """Every descriptor above 2 but these."""
    low = 3
    for fd in sorted(fd for fd in keep if fd > 2):
        os.closerange(low, fd)
        low = fd + 1
    os.closerange(low, 1 << 30)


class closing:
    """Close `fd` when the block ends."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def __enter__(self) -> int:
        return self._fd

    def __exit__(self, *_: object) -> None:
        os.close(self._fd)


class SealedFinder:
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
    if not any(isinstance(finder, SealedFinder) for finder in finders):
        finders[:] = [SealedFinder(fatal=fatal)]
        sys.path_hooks.clear()
        sys.path_importer_cache.clear()
        sys.path.clear()


def end_with(parent: int) -> None:
    """Have the kernel kill this process when `parent` ends, which may have been before (prctl(2), PR_SET_PDEATHSIG)."""
    checked(_libc.prctl(_PR_SET_PDEATHSIG, ctypes.c_ulong(signal.SIGKILL), 0, 0, 0))
    if os.getppid() != parent:
        os._exit(1)


def install_filter(instructions: Sequence[tuple[int, int, int, int]], *, listener: bool = False) -> int:
    """seccomp(2): a filter more, for the caller and all that it starts. Needs no_new_privs.

    Return the descriptor of its notices, if there is to be a `listener`.
    """
    program = b"".join(pack("HBBI", *instruction) for instruction in instructions)
    pointer = ctypes.create_string_buffer(program, len(program))
    filter = pack("HxxxxxxP", len(instructions), ctypes.addressof(pointer))
    number, flags = _SECCOMP[os.uname().machine], _NEW_LISTENER if listener else 0
    return checked(_libc.syscall(ctypes.c_long(number), _SET_MODE_FILTER, flags, filter))


def checked(result: int) -> int:
    """Return the result of a call by ctypes. Raises OSError."""
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result
