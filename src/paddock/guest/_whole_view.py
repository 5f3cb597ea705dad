"""A view with all its contents in one file, for machines that can read nothing but a file.

What lies on the same file system is shared by its blocks where that file system can (copy_file_range(2)).
"""

from __future__ import annotations

import errno
import os

from ._blocks import View
from ._view_table import BLOCK

_PIECE = 1 << 20
_CANNOT = (errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP)


def write_whole(view: str, table: str, largest: int) -> int:
    """Fills the device that `write_view` has described; its length in bytes. OSError where a file cannot be read, or
    has changed; ValueError where there would be more than `largest` bytes."""
    described = View(view, table)
    if described.size > largest:
        words = (
            f"the template has {described.size >> 20} MiB of files, and this VMM reads only one file with all of them"
        )
        raise ValueError(f"{words}: at most {largest >> 20} MiB")
    target = os.open(view, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.ftruncate(target, described.size)
        for block, fd, size in described.files():
            copy_into(fd, target, size, block * BLOCK)
    finally:
        os.close(target)
    return described.size


def copy_into(source: int, target: int, size: int, where: int) -> None:
    """All of one file into another, at that place."""
    done = 0
    while done < size:
        try:
            count = os.copy_file_range(source, target, min(size - done, 1 << 30), done, where + done)
        except OSError as error:
            if error.errno not in _CANNOT:
                raise
            count = os.pwrite(target, os.pread(source, min(size - done, _PIECE), done), where + done)
        if count == 0:
            raise OSError(errno.EIO, "it was cut short while it was copied")
        done += count
