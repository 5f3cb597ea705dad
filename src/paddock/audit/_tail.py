"""The end of a file of lines."""

from __future__ import annotations

import os

_SPAN_BYTES = 64 << 10


def last_line(fd: int) -> tuple[bytes, int]:
    """The last whole line, newline included, and where it ends; what was torn behind it is passed over."""
    size = os.fstat(fd).st_size
    span = _SPAN_BYTES
    while True:
        begin = max(0, size - span)
        tail = os.pread(fd, size - begin, begin)
        stop = tail.rfind(b"\n") + 1
        start = tail.rfind(b"\n", 0, max(0, stop - 1)) + 1
        if begin == 0 or start:
            return tail[start:stop], begin + stop
        span *= 4
