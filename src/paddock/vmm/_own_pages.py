"""The pages of a private file mapping that a process has written.

Facts: Linux, Documentation/admin-guide/mm/pagemap.rst.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator

from paddock.linux.descriptors import closing

_PAGE = os.sysconf("SC_PAGE_SIZE")
_ENTRY = 8
_PRESENT, _SWAPPED, _OF_FILE = 0x80, 0x40, 0x20  # in the highest byte of an entry
_OWN = bytes(int(bool(top & (_PRESENT | _SWAPPED)) and not top & _OF_FILE) for top in range(256))
_RUN = re.compile(b"\x01+")
_CHUNK = 1 << 20


def save(pid: int, path: str, size: int, target: int) -> int:
    """Write the changed pages of process `pid` in its private mapping of `path`, `size` bytes, into `target`, a copy of
    that file.

    Return the number of bytes. The process must not run. Raises OSError, and ValueError if it doesn't map the whole
    file.
    """
    written = mapped = 0
    with closing(os.open(f"/proc/{pid}/mem", os.O_RDONLY | os.O_CLOEXEC)) as memory:
        buffer = bytearray(_CHUNK)
        for start, end, offset in _mappings(pid, path):
            mapped += end - start
            for first, length in _own(pid, start, end):
                _copy(memory, first, target, offset + first - start, length, buffer)
                written += length
    if mapped != size:
        raise ValueError(f"{mapped} bytes of {path} are mapped, not {size}")
    return written


def _mappings(pid: int, path: str) -> Iterator[tuple[int, int, int]]:
    """Yield begin and end of each mapping, and its offset in the file."""
    with open(f"/proc/{pid}/maps", "rb") as file:
        for line in file:
            fields = line.split(maxsplit=5)
            if len(fields) == 6 and fields[5].rstrip(b"\n") == os.fsencode(path):
                start, _, end = fields[0].partition(b"-")
                yield int(start, 16), int(end, 16), int(fields[2], 16)


def _own(pid: int, start: int, end: int) -> Iterator[tuple[int, int]]:
    """Address and length of each run of pages."""
    with closing(os.open(f"/proc/{pid}/pagemap", os.O_RDONLY | os.O_CLOEXEC)) as pages:
        length, place = (end - start) // _PAGE * _ENTRY, start // _PAGE * _ENTRY
        entries = b""
        while len(entries) < length:
            part = os.pread(pages, length - len(entries), place + len(entries))
            if not part:
                raise OSError(f"the pages of {pid} cannot be read")
            entries += part
    for run in _RUN.finditer(entries[_ENTRY - 1 :: _ENTRY].translate(_OWN)):
        first, last = run.span()
        yield start + first * _PAGE, (last - first) * _PAGE


def _copy(memory: int, address: int, target: int, offset: int, length: int, buffer: bytearray) -> None:
    done = 0
    with memoryview(buffer) as view:
        while done < length:
            count = os.preadv(memory, [view[: length - done]], address + done)
            if count == 0:
                raise OSError(f"memory at {address + done:#x} cannot be read")
            end = done + count
            while done < end:  # less at once where the disk is just full, and then the error
                done += os.pwrite(target, view[count - end + done : count], offset + done)
