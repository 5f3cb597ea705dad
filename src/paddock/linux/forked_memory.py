"""Memory that a fork shares until it is written: which pages were, and copying such pages by one call.

Facts: Documentation/admin-guide/mm/pagemap.rst, madvise(2) (MADV_POPULATE_WRITE, Linux 5.14), process_madvise(2), which
takes that advice for the caller itself since Linux 6.13.
"""

from __future__ import annotations

import ctypes
import os
import struct

from paddock.linux._syscall import NR, call

_POPULATE_WRITE = 23
_MOST_RANGES = 1024  # UIO_MAXIOV
_PAGE = os.sysconf("SC_PAGE_SIZE")
_RANGE = struct.Struct("=QQ")  # struct iovec: address and length
_ENTRY_BYTES = 8
_PRESENT, _OF_A_FILE, _EXCLUSIVE = 1 << 63, 1 << 61, 1 << 56


class Pages:
    """Ranges of pages, in the form that the kernel takes."""

    def __init__(self, packed: bytes) -> None:
        self.packed = packed[: _MOST_RANGES * _RANGE.size]
        self._vector = ctypes.create_string_buffer(self.packed, max(1, len(self.packed)))

    def copy(self) -> None:
        """Makes them the caller's own. OSError where the kernel has no such call, or a range is mapped no more."""
        if not self.packed:
            return
        itself = os.pidfd_open(os.getpid())
        try:
            count = len(self.packed) // _RANGE.size
            call(NR.PROCESS_MADVISE, itself, self._vector, count, _POPULATE_WRITE, 0, what="process_madvise: populate")
        finally:
            os.close(itself)


def own_pages() -> Pages:
    """What the caller has written since it was forked. As long as its parent lives: nothing is shared then."""
    ranges: list[tuple[int, int]] = []
    with open("/proc/self/maps", "rb") as file:
        lines = file.readlines()
    with open("/proc/self/pagemap", "rb", buffering=0) as pagemap:
        for line in lines:
            span, mode = line.split(b" ", 2)[:2]
            if mode.startswith(b"rw"):
                start, end = (int(address, 16) // _PAGE for address in span.split(b"-"))
                pagemap.seek(start * _ENTRY_BYTES)
                _collect(ranges, start, pagemap.read((end - start) * _ENTRY_BYTES))
    return Pages(b"".join(_RANGE.pack(first * _PAGE, (last - first) * _PAGE) for first, last in ranges))


def _collect(ranges: list[tuple[int, int]], page: int, entries: bytes) -> None:
    for (entry,) in struct.iter_unpack("=Q", entries):
        if entry & _PRESENT and entry & _EXCLUSIVE and not entry & _OF_A_FILE:
            if ranges and ranges[-1][1] == page:
                ranges[-1] = ranges[-1][0], page + 1
            else:
                ranges.append((page, page + 1))
        page += 1
