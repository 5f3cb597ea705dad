"""A tar archive as a stream of events. No I/O; constant memory; made for archives that an attacker wrote.

Reads ustar, pax and GNU long names (POSIX.1-2017, pax; tar(5)). What it does not know it refuses.
"""

from __future__ import annotations

import tarfile
from collections.abc import Iterator
from enum import Enum
from typing import NamedTuple

from paddock.errors import GuestProtocolError

_BLOCK = 512
_METADATA_BYTES = 64 << 10
_MOST_RECORDS = 64
"""Of one extended header: a guest says a path, a target, a size and a time, and a path has at most 4096 bytes."""
_TAKEN = ("path", "linkpath", "size", "mtime")

_FILES = (tarfile.REGTYPE, tarfile.AREGTYPE, tarfile.CONTTYPE)
_EXTENDED = (tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE)
_LONG = (tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK)


class Kind(Enum):
    FILE = "file"
    DIRECTORY = "directory"
    SYMLINK = "symbolic link"
    HARDLINK = "hard link"
    DEVICE = "device, pipe or socket"


_KINDS = {
    **dict.fromkeys(_FILES, Kind.FILE),
    tarfile.DIRTYPE: Kind.DIRECTORY,
    tarfile.SYMTYPE: Kind.SYMLINK,
    tarfile.LNKTYPE: Kind.HARDLINK,
    tarfile.CHRTYPE: Kind.DEVICE,
    tarfile.BLKTYPE: Kind.DEVICE,
    tarfile.FIFOTYPE: Kind.DEVICE,
}


class Entry(NamedTuple):
    """Exactly as the archive says it; nothing about it is checked."""

    path: str
    kind: Kind
    size: int
    mode: int
    modified_at: float
    target: str


class TarReader:
    """Feed it bytes; it gives entries, and after each file's entry the bytes of that file.

    `complete` from the archive's end on: what follows is ignored. `metadata_bytes` counts what extended headers held.
    """

    def __init__(self) -> None:
        self.complete = False
        self.metadata_bytes = 0
        self._buffer = bytearray()  # a header, or what an extended one holds
        self._wanted = _BLOCK  # bytes of it
        self._extended: tarfile.TarInfo | None = None  # whose content comes next
        self._left = 0  # bytes of the current file that are still to come
        self._padding = 0
        self._extra: dict[str, str] = {}  # what extended headers say about the next entry

    def feed(self, data: bytes) -> Iterator[Entry | bytes]:
        view = memoryview(data)
        while not self.complete and view:
            if self._left or self._padding:
                piece = view[: self._left]
                self._left -= len(piece)
                if piece:
                    yield bytes(piece)
                skipped = min(self._padding, len(view) - len(piece)) if not self._left else 0
                self._padding -= skipped
                view = view[len(piece) + skipped :]
                continue
            wanted = self._wanted - len(self._buffer)
            self._buffer += view[:wanted]
            view = view[wanted:]
            if len(self._buffer) == self._wanted:
                entry = self._block()
                if entry is not None:
                    yield entry

    def _block(self) -> Entry | None:
        block, self._buffer, self._wanted = bytes(self._buffer), bytearray(), _BLOCK
        header, self._extended = self._extended, None
        if header is not None:
            self._extend(header, block[: header.size])
            return None
        header = _header(block)
        if header is None:
            self.complete = True
            return None
        if header.type not in _EXTENDED + _LONG:
            return self._entry(header)
        if not 0 < header.size <= _METADATA_BYTES:
            raise GuestProtocolError(f"the archive has an extended header of {header.size} bytes")
        self._extended, self._wanted = header, _padded(header.size)
        self.metadata_bytes += _BLOCK + self._wanted
        return None

    def _extend(self, header: tarfile.TarInfo, content: bytes) -> None:
        if header.type in _LONG:
            key = "path" if header.type == tarfile.GNUTYPE_LONGNAME else "linkpath"
            self._extra[key] = content.split(b"\0", 1)[0].decode("utf-8", "surrogateescape")
            return
        records = _pax_records(content)
        if header.type == tarfile.XGLTYPE:
            if records.keys() & {"path", "linkpath", "size"}:
                raise GuestProtocolError("the archive's global header names a path or a size")
            return
        if any(key.startswith("GNU.sparse.") for key in records):
            raise GuestProtocolError("the archive holds a sparse file")
        self._extra.update((key, records[key]) for key in _TAKEN if key in records)

    def _entry(self, header: tarfile.TarInfo) -> Entry:
        extra, self._extra = self._extra, {}
        kind = _KINDS.get(header.type)
        if kind is None:
            raise GuestProtocolError(f"the archive holds an entry of unknown type {header.type!r}")
        size = 0
        if kind is Kind.FILE:
            size = _number(extra["size"]) if "size" in extra else header.size
            if not 0 <= size < 1 << 62:
                raise GuestProtocolError(f"the archive holds a file of {size} bytes")
            self._left, self._padding = size, _padded(size) - size
        return Entry(
            path=extra.get("path", header.name),
            kind=kind,
            size=size,
            mode=header.mode,
            modified_at=_time(extra.get("mtime"), header.mtime),
            target=extra.get("linkpath", header.linkname),
        )


def _header(block: bytes) -> tarfile.TarInfo | None:
    """None for the zeros that end an archive."""
    if not block.strip(b"\0"):
        return None
    try:
        return tarfile.TarInfo.frombuf(block, "utf-8", "surrogateescape")
    except tarfile.HeaderError as error:
        raise GuestProtocolError(f"what came is not a tar archive: {error}") from None


def _pax_records(content: bytes) -> dict[str, str]:
    """`LENGTH KEY=VALUE\\n`, where LENGTH counts all of it."""
    records: dict[str, str] = {}
    start = count = 0
    while start < len(content):
        digits, space, _ = content[start : start + 21].partition(b" ")
        end = start + (int(digits) if space and digits.isdigit() else 0)
        key, equals, value = content[start + len(digits) + 1 : max(start, end - 1)].partition(b"=")
        count += 1
        if not equals or end > len(content) or content[end - 1 : end] != b"\n" or count > _MOST_RECORDS:
            raise GuestProtocolError("the archive has an extended header that cannot be read")
        records[key.decode("utf-8", "surrogateescape")] = value.decode("utf-8", "surrogateescape")
        start = end
    return records


def _number(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 20):
        raise GuestProtocolError(f"the archive has {text[:20]!r} where a size belongs")
    return int(text)


def _time(text: str | None, fallback: float) -> float:
    """Seconds that `os.utime` takes; nonsense is 0."""
    try:
        seconds = fallback if text is None else float(text)
    except ValueError:
        return 0.0
    return seconds if 0 <= seconds < 1 << 33 else 0.0


def _padded(size: int) -> int:
    return -(-size // _BLOCK) * _BLOCK
