"""Closing of descriptors that a process must not keep."""

from __future__ import annotations

import os
from types import TracebackType

from paddock.linux._syscall import call

_LAST = 0xFFFF_FFFF


def close_from(first: int) -> None:
    """Close `first` and all above it, by one call (close_range(2), Linux 5.9)."""
    call("close_range", first, _LAST, 0, what=("close_range from", first))


def close_all_but(*kept: int) -> None:
    """Close every descriptor above 2 that is not named."""
    first = 3
    for fd in sorted(kept):
        if fd > first:
            call("close_range", first, fd - 1, 0, what=("close_range", first, fd - 1))
        first = max(first, fd + 1)
    close_from(first)


def write_all(fd: int, data: bytes) -> None:
    """Write all of `data`, by as many calls as it takes."""
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def tee(pipe: int, other: int, size: int) -> int:
    """Copy at most `size` bytes from one pipe into another, and leave them where they are (tee(2)). The count, 0 at the
    end. BlockingIOError: there is nothing now, or no room."""
    return call("tee", pipe, other, size, os.SPLICE_F_NONBLOCK)


class closing:
    """Close `fd` when the block ends."""

    __slots__ = ("_fd",)

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def __enter__(self) -> int:
        return self._fd

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        os.close(self._fd)
