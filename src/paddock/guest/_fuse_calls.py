"""Calls of the kernel on a file that a descriptor only holds (O_PATH), never by a path that somebody could change."""

from __future__ import annotations

import ctypes
import errno
import os
import stat
import struct

_HOW = struct.Struct("=QQQ")  # struct open_how: flags, mode, resolve
# RESOLVE_NO_MAGICLINKS | NO_SYMLINKS | BENEATH, and NO_XDEV (openat2(2), Linux 5.6)
_RESOLVE, _NO_XDEV = 0x02 | 0x04 | 0x08, 0x01
_OPENAT2 = 437  # on every machine
_ATTEMPTS = 64  # EAGAIN: something was renamed or mounted meanwhile, somewhere on the machine
_EMPTY_PATH = 0x1000
_HELD = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
UTIME_NOW, UTIME_OMIT = (1 << 30) - 1, (1 << 30) - 2
_TIMES = struct.Struct("=4q")

_libc = ctypes.CDLL(None, use_errno=True)
_pointer, _long, _int, _unsigned = ctypes.c_void_p, ctypes.c_long, ctypes.c_int, ctypes.c_uint32
_libc.syscall.restype = _long
_libc.syscall.argtypes = (_long, _long, _pointer, _pointer, _long)
_libc.fchownat.argtypes = (_int, ctypes.c_char_p, _unsigned, _unsigned, _int)
_libc.renameat2.argtypes = (_int, ctypes.c_char_p, _int, ctypes.c_char_p, ctypes.c_uint)
_libc.fallocate.argtypes = (_int, _int, ctypes.c_int64, ctypes.c_int64)
_libc.utimensat.argtypes = (_int, ctypes.c_char_p, _pointer, _int)


def _checked(result: int) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result


def hold(directory: int, name: bytes, *, across: bool = False) -> int:
    """A descriptor of what `name` is: of a link itself, not of what it leads to, and, but `across`, of no other
    mount."""
    how = _HOW.pack(_HELD, 0, _RESOLVE if across else _RESOLVE | _NO_XDEV)
    for attempt in range(_ATTEMPTS):
        try:
            return _checked(_libc.syscall(_OPENAT2, directory, name, how, _HOW.size))
        except OSError as error:
            if error.errno not in (errno.EAGAIN, errno.EINTR) or attempt == _ATTEMPTS - 1:
                raise
    raise AssertionError


def reopen(held: int, flags: int) -> int:
    """What `held` holds, opened. A regular file or a directory: the caller has looked."""
    return os.open(place(held), flags | os.O_NOCTTY | os.O_NONBLOCK | os.O_CLOEXEC)


def place(held: int) -> str:
    """A path that leads to the very file that is held (of a link: to the link), for calls that know paths only."""
    return f"/proc/self/fd/{held}"


def chown(held: int, uid: int, gid: int) -> None:
    _checked(_libc.fchownat(held, b"", uid & 0xFFFF_FFFF, gid & 0xFFFF_FFFF, _EMPTY_PATH))


def kill_privileges(fd: int) -> None:
    """What a write by whoever may not keep them takes away: the set-user-ID bit, and set-group-ID of a program."""
    mode = os.fstat(fd).st_mode
    kept = mode & ~stat.S_ISUID
    if mode & stat.S_IXGRP:
        kept &= ~stat.S_ISGID
    if kept != mode:
        os.chmod(place(fd), stat.S_IMODE(kept))


def set_times(held: int, accessed: tuple[int, int], modified: tuple[int, int]) -> None:
    """Seconds and nanoseconds each; UTIME_NOW and UTIME_OMIT in place of nanoseconds."""
    times = _TIMES.pack(*accessed, *modified)
    _checked(_libc.utimensat(-100, place(held).encode(), times, 0))


def rename(old: int, old_name: bytes, new: int, new_name: bytes, flags: int) -> None:
    _checked(_libc.renameat2(old, old_name, new, new_name, flags))


def allocate(fd: int, mode: int, offset: int, length: int) -> None:
    _checked(_libc.fallocate(fd, mode, offset, length))
