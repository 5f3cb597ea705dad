"""Reading a tar archive that nobody is trusted with, in one pass and in little memory.

ustar, pax and GNU's long names (tar(5), POSIX pax). `tarfile` reads a header of any size into memory, takes a damaged
header for the end, and knows kinds of files that no image needs; here all that is not understood is refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Protocol

from paddock.errors import ImageInvalid

BLOCK = 512
_CHUNK = 1 << 18
_HEADER_BYTES = 1 << 20  # of pax headers and long names of one entry; an attribute may have 64 KiB
_PATH_BYTES = 4095
_LARGEST = 1 << 62
FILE, LINK, SYMLINK, CHAR, BLOCK_DEVICE, DIRECTORY, FIFO = b"0", b"1", b"2", b"3", b"4", b"5", b"6"
_FILES = (FILE, b"\0", b"7")
_KINDS = (LINK, SYMLINK, CHAR, BLOCK_DEVICE, DIRECTORY, FIFO)
_PAX, _PAX_GLOBAL, _LONG_NAME, _LONG_TARGET = b"x", b"g", b"L", b"K"
_XATTR = b"SCHILY.xattr."
_LENGTH = re.compile(rb"(\d{1,8}) ")
_DECIMAL = re.compile(rb"-?\d{1,19}(?:\.\d*)?")
_SMALL_TIME = re.compile(rb"\d\.?\d{0,20}e-\d{1,3}")  # as Python writes a part of a second
_OCTAL = re.compile(rb"[0-7]*")


class Stream(Protocol):
    def read(self, size: int, /) -> bytes:
        """At most so many bytes; none only at the end."""
        ...


@dataclass(slots=True)
class Entry:
    """One file of the archive. `mtime` is in nanoseconds. Of a file, `Reader.content` gives the content."""

    name: bytes
    kind: bytes
    size: int
    mode: int
    uid: int
    gid: int
    mtime: int
    target: bytes = b""
    xattrs: dict[bytes, bytes] = field(default_factory=dict[bytes, bytes])


class Reader:
    """The entries of one archive. ImageInvalid for whatever is no archive or no longer one."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._left = 0  # of the content of the entry that was given last
        self._padding = 0
        self._globals: dict[bytes, bytes] = {}

    def __iter__(self) -> Iterator[Entry]:
        while (entry := self._next()) is not None:
            yield entry

    def content(self) -> Iterator[bytes]:
        """Of the file that was given last, once."""
        while self._left:
            data = self._read(min(self._left, _CHUNK))
            self._left -= len(data)
            yield data

    def pass_over(self) -> None:
        """The caller leaves out the content of the file that was given last: the stream goes on behind it."""
        self._left = 0

    def _next(self) -> Entry | None:
        own: dict[bytes, bytes] = {}
        name = target = None
        spent = 0
        while True:
            self._skip()
            header = self._header()
            if header is None:
                if own or name is not None or target is not None:
                    raise ImageInvalid("the archive ends after the extended header of a file")
                return None
            kind, size = header[156:157], _number(header[124:136])
            if kind in (_PAX, _PAX_GLOBAL, _LONG_NAME, _LONG_TARGET):
                spent += size
                if size < 0 or spent > _HEADER_BYTES:
                    raise ImageInvalid(f"the archive has a header of {spent} bytes")
                self._left, self._padding = size, -size % BLOCK
                data = b"".join(self.content())
                if kind == _PAX:
                    own |= _records(data)
                elif kind == _PAX_GLOBAL:
                    self._globals |= _records(data)
                elif kind == _LONG_NAME:
                    name = data.rstrip(b"\0")
                else:
                    target = data.rstrip(b"\0")
                continue
            pax = {key: value for key, value in (self._globals | own).items() if value or key.startswith(_XATTR)}
            return self._entry(header, kind, size, pax, name, target)

    def _entry(
        self, header: bytes, kind: bytes, size: int, pax: dict[bytes, bytes], name: bytes | None, target: bytes | None
    ) -> Entry:
        name = _name(header) if name is None else name
        name, target = (
            pax.get(b"path", name),
            pax.get(b"linkpath", _text(header[157:257]) if target is None else target),
        )
        if any(key.startswith(b"GNU.sparse.") for key in pax) or kind == b"S":
            raise ImageInvalid(
                f"{_shown(name)} is a sparse file, which no image needs", hint="build it without --sparse"
            )
        if kind in _FILES:
            # As old archives write a directory.
            kind = DIRECTORY if name.endswith(b"/") else FILE
        elif kind not in _KINDS:
            raise ImageInvalid(f"{_shown(name)} is of a kind {kind!r} that is not known")
        size = _decimal(pax, b"size", size)
        # Only files have content, whatever the header says; a hard link's size is that of the file it leads to.
        self._left = size if kind == FILE else 0
        self._padding = -self._left % BLOCK
        if not 0 <= size <= _LARGEST:
            raise ImageInvalid(f"{_shown(name)} has a size of {size}")
        for text in (name, target):
            if b"\0" in text or len(text) > _PATH_BYTES:
                raise ImageInvalid(f"{_shown(name)} has a name or target that is none")
        return Entry(
            name=name,
            kind=kind,
            size=self._left,
            mode=_number(header[100:108]) & 0o7777,
            uid=_decimal(pax, b"uid", _number(header[108:116])),
            gid=_decimal(pax, b"gid", _number(header[116:124])),
            mtime=_time(pax.get(b"mtime"), _number(header[136:148])),
            target=target,
            xattrs={key.removeprefix(_XATTR): value for key, value in pax.items() if key.startswith(_XATTR)},
        )

    def _header(self) -> bytes | None:
        """None: the end, which is two blocks of zeros; one, or none at all, is taken for it too."""
        header = self._read(BLOCK, or_end=True)
        if not header or header == bytes(BLOCK):
            return None
        stored = _number(header[148:156])
        blank = header[:148] + b" " * 8 + header[156:]
        if stored != sum(blank):
            raise ImageInvalid("the archive is damaged: a header has the wrong checksum")
        return header

    def _skip(self) -> None:
        for _ in self.content():
            pass
        if self._padding:
            self._read(self._padding)
            self._padding = 0

    def _read(self, size: int, *, or_end: bool = False) -> bytes:
        data = self._stream.read(size)
        if not data and or_end:
            return b""
        while len(data) < size:
            more = self._stream.read(size - len(data))
            if not more:
                raise ImageInvalid("the archive ends in the middle of a file")
            data += more
        return data


def _records(data: bytes) -> dict[bytes, bytes]:
    """`LENGTH KEY=VALUE\\n`, LENGTH counting all of it (pax(1))."""
    found: dict[bytes, bytes] = {}
    at = 0
    while at < len(data):
        match = _LENGTH.match(data, at)
        end = at + int(match[1]) if match else 0
        if match is None or end <= match.end() or end > len(data) or data[end - 1 : end] != b"\n":
            raise ImageInvalid("the archive has an extended header that is none")
        key, equals, value = data[match.end() : end - 1].partition(b"=")
        if not equals or not key:
            raise ImageInvalid("the archive has an extended header that is none")
        found[key] = value
        at = end
    return found


def _name(header: bytes) -> bytes:
    name = _text(header[:100])
    prefix = _text(header[345:500]) if header[257:263] == b"ustar\0" else b""
    return prefix + b"/" + name if prefix else name


def _text(field: bytes) -> bytes:
    return field.partition(b"\0")[0]


def _number(field: bytes) -> int:
    """Octal digits, or with the first bit set the bytes of a number (star, GNU)."""
    if field[0] in (0x80, 0xFF):
        value = int.from_bytes(field[1:], "big")
        return value - (1 << 8 * (len(field) - 1)) if field[0] == 0xFF else value
    digits = field.partition(b"\0")[0].strip(b" ")
    if not _OCTAL.fullmatch(digits):
        raise ImageInvalid(f"the archive has {digits!r} where a number should be")
    return int(digits or b"0", 8)


def _decimal(pax: dict[bytes, bytes], key: bytes, default: int) -> int:
    value = pax.get(key)
    if value is None:
        return default
    if not _DECIMAL.fullmatch(value):
        raise ImageInvalid(f"the archive has {value[:40]!r} where a number should be")
    return int(value.partition(b".")[0])


def _time(text: bytes | None, default: int) -> int:
    if text is None:
        return default * 10**9
    if _SMALL_TIME.fullmatch(text):
        return int(float(text) * 10**9)
    if not _DECIMAL.fullmatch(text):
        raise ImageInvalid(f"the archive has {text[:40]!r} where a time should be")
    whole, _, part = text.partition(b".")
    return int(whole) * 10**9 + int(part[:9].ljust(9, b"0"))


def _shown(name: bytes) -> str:
    return repr(name[:200].decode("utf-8", "backslashreplace"))
