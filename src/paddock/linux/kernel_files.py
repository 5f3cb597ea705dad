"""Files of proc, sysfs and cgroupfs: read and written whole, relative to a directory's descriptor."""

from __future__ import annotations

import os

from paddock.linux.syscall import failure

Path = str | bytes


def read(path: Path, dir_fd: int | None = None) -> bytes:
    """Return the whole content. Errors name the file and, where only the reading failed, say so."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC, dir_fd=dir_fd)
    try:
        chunks: list[bytes] = []
        while data := os.read(fd, 65536):  # a short read isn't the end: seq_file stops between two entries
            chunks.append(data)
        return b"".join(chunks)
    except OSError as error:
        raise failure(error.errno or 0, ("read", path)) from None
    finally:
        os.close(fd)


def write(path: Path, data: bytes, dir_fd: int | None = None) -> None:
    """Write `data` by one write(2), as such files want it."""
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC, dir_fd=dir_fd)
    try:
        os.write(fd, data)
    except OSError as error:
        raise failure(error.errno or 0, ("write", path, data[:64])) from None
    finally:
        os.close(fd)
