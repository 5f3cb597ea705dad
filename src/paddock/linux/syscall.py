"""System calls that Python has no function for, on x86_64 and aarch64."""

from __future__ import annotations

import ctypes
import fcntl
import os
from collections import defaultdict

from paddock.linux.syscall_names import numbers

MACHINE = os.uname().machine
# On other machines every number is -1, and the kernel answers ENOSYS.
_NUMBERS = numbers(MACHINE) if MACHINE in ("x86_64", "aarch64") else defaultdict[str, int](lambda: -1)

# The arguments of a system call: a number, bytes (as a pointer to them), a ctypes buffer, or nothing.
Argument = int | bytes | ctypes.Array[ctypes.c_char] | None

# c_void_p takes all of those, negative numbers included, and never cuts a number to 32 bits as ctypes' default does.
_SIGNATURE = (ctypes.c_long, *(ctypes.c_void_p,) * 6)
_syscall = ctypes.CDLL(None, use_errno=True).syscall
_syscall.restype = ctypes.c_long
_syscall.argtypes = _SIGNATURE
# The same without a release of the interpreter lock: the child of a clone must hold it.
_syscall_locked = ctypes.PyDLL(None, use_errno=True).syscall
_syscall_locked.restype = ctypes.c_long
_syscall_locked.argtypes = _SIGNATURE


def call(
    name: str,
    a: Argument = None,
    b: Argument = None,
    c: Argument = None,
    d: Argument = None,
    e: Argument = None,
    f: Argument = None,
    *,
    what: str | tuple[object, ...] = "",
) -> int:
    """Make the system call (syscall(2)) and return its result.

    Raises OSError with errno, its text, and `what`, or its name, as filename. The parts of a tuple become one text with
    blanks.
    """
    result: int = _syscall(_NUMBERS[name], a, b, c, d, e, f)
    if result == -1:
        raise failure(ctypes.get_errno(), what or name)
    return result


def call_locked(name: str, a: Argument = None, b: Argument = None, *, what: str) -> int:
    """Make a system call like `call`, but keep the interpreter lock: for clone only."""
    result: int = _syscall_locked(_NUMBERS[name], a, b, None, None, None, None)
    if result == -1:
        raise failure(ctypes.get_errno(), what)
    return result


def ioctl(fd: int, request: int, argument: int | bytearray, *, what: tuple[object, ...]) -> int:
    """Make the call ioctl(2). The kernel may write into a bytearray."""
    try:
        return fcntl.ioctl(fd, request, argument)
    except OSError as error:
        raise failure(error.errno or 0, what) from None


def failure(number: int, what: str | tuple[object, ...], detail: str = "") -> OSError:
    """Return the OSError (of the subclass that fits) for errno `number`."""
    text = os.strerror(number)
    return OSError(number, f"{text} ({detail})" if detail else text, what if isinstance(what, str) else words(what))


def words(parts: tuple[object, ...]) -> str:
    """Join `parts` to one line of text. Bytes decode like file names."""
    return " ".join(os.fsdecode(p) if isinstance(p, bytes) else str(p) for p in parts)
