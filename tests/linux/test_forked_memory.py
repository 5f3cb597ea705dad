from __future__ import annotations

import ctypes
import mmap
import os
import resource
import struct

import pytest

from paddock.linux import forked_memory

from .child import run_in_child

PAGE = mmap.PAGESIZE


def _faults() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


def _area(pages: int) -> tuple[mmap.mmap, int]:
    area = mmap.mmap(-1, pages * PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    area.write(b"x" * pages * PAGE)
    return area, ctypes.addressof(ctypes.c_char.from_buffer(area))


def test_the_pages_that_a_fork_has_written_are_its_own_and_no_others() -> None:
    area, address = _area(16)

    def body() -> None:
        for page in (2, 3, 9):
            area[page * PAGE] = 0
        own: set[int] = set()
        for start, length in struct.iter_unpack("=QQ", forked_memory.own_pages().packed):
            own.update(range(start, start + length, PAGE))
        assert {page for page in range(16) if address + page * PAGE in own} == {2, 3, 9}

    run_in_child(body)


def test_what_was_copied_ahead_is_written_without_a_fault() -> None:
    area, address = _area(512)

    def body() -> None:
        pages = forked_memory.Pages(struct.pack("=QQ", address, 512 * PAGE))
        try:
            pages.copy()
        except OSError:
            os._exit(0)  # a kernel before 6.13
        before = _faults()
        for page in range(512):
            area[page * PAGE] = 0
        assert _faults() - before < 256
        assert area[1] == ord("x")

    run_in_child(body)


def test_a_range_that_is_not_mapped_is_an_error() -> None:
    with pytest.raises(OSError):
        forked_memory.Pages(struct.pack("=QQ", 0, PAGE)).copy()
    forked_memory.Pages(b"").copy()
