"""Facts and steps of files that Python has no function for."""

from __future__ import annotations

import ctypes
import os
import struct

from paddock.linux.syscall import call

_EXCHANGE = 2  # RENAME_EXCHANGE, include/uapi/linux/fs.h
_KEEP_SIZE = 0x01  # FALLOC_FL_KEEP_SIZE, include/uapi/linux/falloc.h
_PUNCH_HOLE = 0x02  # FALLOC_FL_PUNCH_HOLE
_EMPTY_PATH = 0x1000  # AT_EMPTY_PATH
_BTIME = 0x800  # STATX_BTIME
_SIZE, _AT = 256, 80  # of struct statx, and of stx_btime in it: include/uapi/linux/stat.h
_PROGRAMS = "/usr/local/sbin:/usr/sbin:/sbin:/usr/local/bin:/usr/bin:/bin"


def find_program(name: str) -> str | None:
    """Find a program of the system. PATH is not asked: an ordinary user's lacks sbin, and a careless one has `.`."""
    from shutil import which

    return which(name, path=_PROGRAMS)


def exchange(directory: int, one: str, other: str) -> None:
    """Swap two names in `directory` in one step (renameat2(2)).

    Raises FileNotFoundError if one is missing, and EINVAL if the file system can't.
    """
    first, second = os.fsencode(one), os.fsencode(other)
    what = ("renameat2", first, second)
    call("renameat2", directory, first, directory, second, _EXCHANGE, what=what)


def reserve(fd: int, offset: int, length: int) -> None:
    """Reserve space for these bytes of the file, so that writes to them succeed on a full disk too.

    Its size doesn't change (fallocate(2)). Raises OSError ENOSPC without enough space, and EOPNOTSUPP if the file
    system can't.
    """
    call("fallocate", fd, _KEEP_SIZE, offset, length)


def free(fd: int, offset: int, length: int) -> None:
    """Free the space of these bytes of the file, which become zeros.

    Its size doesn't change (fallocate(2)). Raises OSError EOPNOTSUPP if the file system can't.
    """
    call("fallocate", fd, _KEEP_SIZE | _PUNCH_HOLE, offset, length)


def sync_file_system(fd: int) -> None:
    """Write all of the file system of `fd` to its disk (syncfs(2))."""
    call("syncfs", fd)


def birth_ns(fd: int) -> int | None:
    """Return the file's birth time, which no program can set (statx(2)), or None if the file system lacks it.

    It is in nanoseconds since 1970 by the wall clock of then. Raises OSError.
    """
    buffer = ctypes.create_string_buffer(_SIZE)
    call("statx", fd, b"", _EMPTY_PATH, _BTIME, buffer, what=("statx", fd))
    mask = struct.unpack_from("=I", buffer)[0]
    if not mask & _BTIME:
        return None
    seconds, nanoseconds = struct.unpack_from("=qI", buffer, _AT)
    return seconds * 1_000_000_000 + nanoseconds
