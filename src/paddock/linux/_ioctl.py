"""ioctl(2) with an error that says what was attempted."""

from __future__ import annotations

import fcntl

from paddock.linux._syscall import failure


def ioctl(fd: int, request: int, argument: int | bytearray, *, what: tuple[object, ...]) -> int:
    """Returns the call's result; a bytearray holds what the kernel wrote into it."""
    try:
        return fcntl.ioctl(fd, request, argument)
    except OSError as error:
        raise failure(error.errno or 0, what) from None
