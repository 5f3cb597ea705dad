"""Closing of descriptors that a process must not keep, and descriptors from a child in other namespaces."""

from __future__ import annotations

import errno
import os
import socket
import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from types import TracebackType

from paddock.linux.syscall import call

_LAST = 0xFFFF_FFFF
_WORDS_BYTES, _MOST = 4096, 8


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


def of_child(make: Callable[[], Iterable[int]]) -> list[int]:
    """Run `make` in a child, which may enter other namespaces, and return its descriptors.

    Raises ChildProcessError with its words if that failed, and OSError if there can be no child.
    """
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours:
        pid = os.fork()
        if pid == 0:
            try:
                socket.send_fds(theirs, [b"made"], list(make()))
            except BaseException as error:
                with suppress(OSError):
                    theirs.send(f"{type(error).__name__}: {error}".encode()[:_WORDS_BYTES])
            finally:
                sys.stderr.flush()
                os._exit(0)
        theirs.close()
        try:
            words, found, _, _ = socket.recv_fds(ours, _WORDS_BYTES, _MOST, socket.MSG_CMSG_CLOEXEC)
        finally:
            os.waitpid(pid, 0)
    if not found:
        raise OSError(errno.ECHILD, words.decode(errors="replace") or "the process that was to make it died")
    return found


class closing:
    """Close `fd` when the block ends."""

    __slots__ = ("_fd",)

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def __enter__(self) -> int:
        return self._fd

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        os.close(self._fd)
