"""Room on the disk that is a file's before anything is written into it (fallocate(2))."""

from __future__ import annotations

from paddock.linux._syscall import call

_KEEP_SIZE = 0x01  # FALLOC_FL_KEEP_SIZE, include/uapi/linux/falloc.h


def reserve(fd: int, offset: int, length: int) -> None:
    """Writes to these bytes of the file find room, also when the disk is full by then; its size stays as it is.

    OSError ENOSPC: there is not that much room; EOPNOTSUPP: this file system cannot promise it.
    """
    call("fallocate", fd, _KEEP_SIZE, offset, length)
