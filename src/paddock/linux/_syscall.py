"""System calls that Python has no name for, by number, on x86_64 and aarch64.

Numbers: arch/x86/entry/syscalls/syscall_64.tbl and include/uapi/asm-generic/unistd.h.
"""

from __future__ import annotations

import ctypes
import fcntl
import os

MACHINE = os.uname().machine
# On any other machine every number is -1, to which the kernel answers ENOSYS.
_COLUMN = {"x86_64": 0, "aarch64": 1}.get(MACHINE)


def _number(x86_64: int, aarch64: int) -> int:
    return -1 if _COLUMN is None else (x86_64, aarch64)[_COLUMN]


class NR:
    """Numbers of the calls that this package makes."""

    CLONE = _number(56, 220)
    UNSHARE = _number(272, 97)
    SETNS = _number(308, 268)
    SETHOSTNAME = _number(170, 161)
    MOUNT = _number(165, 40)
    UMOUNT2 = _number(166, 39)
    PIVOT_ROOT = _number(155, 41)
    OPEN_TREE = _number(428, 428)
    MOVE_MOUNT = _number(429, 429)
    FSOPEN = _number(430, 430)
    FSCONFIG = _number(431, 431)
    FSMOUNT = _number(432, 432)
    FSPICK = _number(433, 433)
    RENAMEAT2 = _number(316, 276)
    MOUNT_SETATTR = _number(442, 442)
    OPENAT2 = _number(437, 437)
    STATFS = _number(137, 43)
    FSTATFS = _number(138, 44)
    FALLOCATE = _number(285, 47)
    SYNCFS = _number(306, 267)
    SETFSUID = _number(122, 151)
    SETFSGID = _number(123, 152)
    CAPGET = _number(125, 90)
    CAPSET = _number(126, 91)
    PRCTL = _number(157, 167)
    SECCOMP = _number(317, 277)
    LANDLOCK_CREATE_RULESET = _number(444, 444)
    LANDLOCK_ADD_RULE = _number(445, 445)
    LANDLOCK_RESTRICT_SELF = _number(446, 446)
    STATX = _number(332, 291)
    CLOSE_RANGE = _number(436, 436)
    INOTIFY_INIT1 = _number(294, 26)
    INOTIFY_ADD_WATCH = _number(254, 27)


# What a system call takes: a number, bytes (as a pointer to them), a ctypes buffer, or nothing.
Argument = int | bytes | ctypes.Array[ctypes.c_char] | None

# c_void_p takes all of those, negative numbers included, and never cuts a number to 32 bits as ctypes' default does.
_SIGNATURE = (ctypes.c_long, *(ctypes.c_void_p,) * 6)
_syscall = ctypes.CDLL(None, use_errno=True).syscall
_syscall.restype = ctypes.c_long
_syscall.argtypes = _SIGNATURE
# The same without letting go of the interpreter lock: the child of a clone must be born holding it.
_syscall_locked = ctypes.PyDLL(None, use_errno=True).syscall
_syscall_locked.restype = ctypes.c_long
_syscall_locked.argtypes = _SIGNATURE


def call(
    number: int,
    a: Argument = None,
    b: Argument = None,
    c: Argument = None,
    d: Argument = None,
    e: Argument = None,
    f: Argument = None,
    *,
    what: str | tuple[object, ...] = "system call",
) -> int:
    """Makes system call `number` (syscall(2)) and returns its result.

    Raises OSError with errno, its text, and `what` (joined by blanks, if it is a tuple) as filename.
    """
    result: int = _syscall(number, a, b, c, d, e, f)
    if result == -1:
        raise failure(ctypes.get_errno(), what)
    return result


def call_locked(number: int, a: Argument = None, b: Argument = None, *, what: str) -> int:
    """As `call`, but keeps the interpreter lock: for clone only."""
    result: int = _syscall_locked(number, a, b, None, None, None, None)
    if result == -1:
        raise failure(ctypes.get_errno(), what)
    return result


def ioctl(fd: int, request: int, argument: int | bytearray, *, what: tuple[object, ...]) -> int:
    """As `call`, for ioctl(2); a bytearray holds what the kernel wrote into it."""
    try:
        return fcntl.ioctl(fd, request, argument)
    except OSError as error:
        raise failure(error.errno or 0, what) from None


def failure(number: int, what: str | tuple[object, ...], detail: str = "") -> OSError:
    """The OSError (of the subclass that fits) for errno `number`."""
    text = os.strerror(number)
    return OSError(number, f"{text} ({detail})" if detail else text, what if isinstance(what, str) else words(what))


def words(parts: tuple[object, ...]) -> str:
    """`parts` as one line of text; bytes are decoded as file names are."""
    return " ".join(os.fsdecode(p) if isinstance(p, bytes) else str(p) for p in parts)
