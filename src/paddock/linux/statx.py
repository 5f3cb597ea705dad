"""When a file was made: the one time of a file that nobody can set (statx(2), `stx_btime`)."""

from __future__ import annotations

import ctypes
import struct

from ._syscall import call

_EMPTY_PATH = 0x1000  # AT_EMPTY_PATH
_BTIME = 0x800  # STATX_BTIME
_SIZE, _AT = 256, 80  # of struct statx, and of stx_btime in it: include/uapi/linux/stat.h


def birth_ns(fd: int) -> int | None:
    """Nanoseconds since 1970 by the wall clock of then; None where the file system does not keep it. OSError."""
    buffer = ctypes.create_string_buffer(_SIZE)
    call("statx", fd, b"", _EMPTY_PATH, _BTIME, buffer, what=("statx", fd))
    mask = struct.unpack_from("=I", buffer)[0]
    if not mask & _BTIME:
        return None
    seconds, nanoseconds = struct.unpack_from("=qI", buffer, _AT)
    return seconds * 1_000_000_000 + nanoseconds
