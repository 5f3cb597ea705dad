"""The headers of a tar archive that an attacker may have written.

No I/O, little memory, one pass.

It reads ustar, pax and GNU's long names (tar(5), POSIX pax), and refuses all else. `tarfile` reads a header of any size
into memory, takes a corrupt header for the end, and follows formats that paddock doesn't need.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple

BLOCK = 512
_LARGEST = 1 << 62
FILE, LINK, SYMLINK, CHAR, BLOCK_DEVICE, DIRECTORY, FIFO = b"0", b"1", b"2", b"3", b"4", b"5", b"6"
_FILES = (FILE, b"\0", b"7")
_KINDS = (LINK, SYMLINK, CHAR, BLOCK_DEVICE, DIRECTORY, FIFO)
_PAX, _PAX_GLOBAL, _LONG_NAME, _LONG_TARGET = b"x", b"g", b"L", b"K"
_XATTR, _SPARSE = b"SCHILY.xattr.", b"GNU.sparse."
_LENGTH = re.compile(rb"(\d{1,8}) ")
_DECIMAL = re.compile(rb"-?\d{1,19}(?:\.\d*)?")
_SMALL_TIME = re.compile(rb"\d\.?\d{0,20}e-\d{1,3}")  # as Python writes a part of a second
_OCTAL = re.compile(rb"[0-7]*")


class TarError(ValueError):
    """The data isn't an archive, or not any more."""


class Entry(NamedTuple):
    """One file of the archive, with an unchecked name and target.

    `mtime` is in nanoseconds. `size` is the one of the content, which only files have.
    """

    name: bytes
    kind: bytes
    size: int
    mode: int
    uid: int
    gid: int
    mtime: int
    target: bytes
    xattrs: Mapping[bytes, bytes]


class Headers:
    """Takes the headers of an archive one by one.

    Between an entry and the next header, its reader skips the content and its padding.

    `wanted` is the number of bytes for the next `take`. `complete` is true after the archive's end. `spent` counts the
    bytes of extended headers. One entry may have `most_bytes` of them, and each header `most_records`.
    """

    def __init__(self, *, most_bytes: int, most_records: int) -> None:
        self.wanted, self.complete, self.spent = BLOCK, False, 0
        self._most_bytes, self._most_records = most_bytes, most_records
        self._extended: tuple[bytes, int] | None = None  # kind and size of what comes next
        self._globals: dict[bytes, bytes] = {}
        self._clear()

    def _clear(self) -> None:
        self._own: dict[bytes, bytes] = {}
        self._pending = 0  # bytes of extended headers that are about the next entry

    def take(self, data: bytes) -> Entry | None:
        """Return an entry, when its header is whole. TarError."""
        if self._extended is not None:
            (kind, size), self._extended, self.wanted = self._extended, None, BLOCK
            self._extend(kind, data[:size])
            return None
        if data == bytes(BLOCK):
            self.end()
            return None
        if _number(data[148:156]) != sum(data[:148] + b" " * 8 + data[156:]):
            raise TarError("the archive is damaged: a header has the wrong checksum")
        kind, size = data[156:157], _number(data[124:136])
        if kind not in (_PAX, _PAX_GLOBAL, _LONG_NAME, _LONG_TARGET):
            entry = self._entry(data, kind, size)
            self._clear()
            return entry
        self._pending += size
        if size < 0 or self._pending > self._most_bytes:
            raise TarError(f"the archive has an extended header of {self._pending} bytes")
        if size:
            self._extended, self.wanted = (kind, size), size + padding(size)
            self.spent += BLOCK + self.wanted
        return None

    def end(self) -> None:
        """Take note that nothing follows: two blocks of zeros, or one, or none at all."""
        if self._own or self._extended is not None:
            raise TarError("the archive ends after the extended header of a file")
        self.complete = True

    def _extend(self, kind: bytes, data: bytes) -> None:
        if kind in (_LONG_NAME, _LONG_TARGET):
            # Under names that no record has: pax takes precedence, in any order.
            self._own[b"\0path" if kind == _LONG_NAME else b"\0linkpath"] = data.partition(b"\0")[0]
            return
        records = _records(data, self._most_records)
        if kind == _PAX:
            self._own |= records
        elif any(key in (b"path", b"linkpath", b"size") or key.startswith((_XATTR, _SPARSE)) for key in records):
            raise TarError("the archive's global header says what only one file can have")
        else:
            self._globals |= {key: records[key] for key in (b"uid", b"gid", b"mtime") if key in records}

    def _entry(self, header: bytes, kind: bytes, size: int) -> Entry:
        pax = {key: value for key, value in (self._globals | self._own).items() if value or key.startswith(_XATTR)}
        name = pax.get(b"path", pax.get(b"\0path", _name(header)))
        if any(key.startswith(_SPARSE) for key in pax) or kind == b"S":
            raise TarError(f"{shown(name)} is a sparse file: make the archive without --sparse")
        if kind in _FILES:
            # Old archives write a directory this way.
            kind = DIRECTORY if name.endswith(b"/") else FILE
        elif kind not in _KINDS:
            raise TarError(f"{shown(name)} is of a kind {kind!r} that is not known")
        size = _decimal(pax, b"size", size)
        if not 0 <= size <= _LARGEST:
            raise TarError(f"{shown(name)} has a size of {size}")
        return Entry(
            name=name,
            kind=kind,
            # The header may say otherwise: the size of a hard link is that of its target.
            size=size if kind == FILE else 0,
            mode=_number(header[100:108]) & 0o7777,
            uid=_decimal(pax, b"uid", _number(header[108:116])),
            gid=_decimal(pax, b"gid", _number(header[116:124])),
            mtime=_time(pax.get(b"mtime"), _number(header[136:148])),
            target=pax.get(b"linkpath", pax.get(b"\0linkpath", _text(header[157:257]))),
            xattrs={key.removeprefix(_XATTR): value for key, value in pax.items() if key.startswith(_XATTR)},
        )


class Reader:
    """Turns the bytes of an archive into entries, each followed by the pieces of its content.

    `limits` are the ones of `Headers`.

    It ignores all data after the archive's end.
    """

    def __init__(self, **limits: int) -> None:
        self.headers = Headers(**limits)
        self._buffer = bytearray()
        self._left = self._padding = 0  # bytes of the current content, and of what follows it

    def feed(self, data: bytes) -> Iterator[Entry | bytes]:
        """Take the next bytes. TarError."""
        view = memoryview(data)
        while not self.headers.complete and view:
            if self._left or self._padding:
                piece = view[: self._left]
                self._left -= len(piece)
                if piece:
                    yield bytes(piece)
                skipped = min(self._padding, len(view) - len(piece)) if not self._left else 0
                self._padding -= skipped
                view = view[len(piece) + skipped :]
                continue
            wanted = self.headers.wanted - len(self._buffer)
            self._buffer += view[:wanted]
            view = view[wanted:]
            if len(self._buffer) == self.headers.wanted:
                block, self._buffer = bytes(self._buffer), bytearray()
                entry = self.headers.take(block)
                if entry is not None:
                    self._left, self._padding = entry.size, padding(entry.size)
                    yield entry

    def end(self) -> None:
        """Take note that no bytes follow. TarError: the archive isn't whole."""
        if self._left or self._padding or self._buffer:
            raise TarError("the archive ends in the middle of a file")
        if not self.headers.complete:
            self.headers.end()


def padding(size: int) -> int:
    """Return how many bytes follow a content of that size, up to the next block."""
    return -size % BLOCK


def shown(name: bytes) -> str:
    return repr(name[:200].decode("utf-8", "backslashreplace"))


def _records(data: bytes, most: int) -> dict[bytes, bytes]:
    """`LENGTH KEY=VALUE\\n`, LENGTH counting all of it (pax(1))."""
    found: dict[bytes, bytes] = {}
    at = count = 0
    while at < len(data):
        match = _LENGTH.match(data, at)
        end = at + int(match[1]) if match else 0
        count += 1
        if match is None or end <= match.end() or data[end - 1 : end] != b"\n" or count > most:
            raise TarError("the archive has an extended header that cannot be read")
        key, equals, value = data[match.end() : end - 1].partition(b"=")
        if not equals or not key:
            raise TarError("the archive has an extended header that cannot be read")
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
    digits = _text(field).strip(b" ")
    if not _OCTAL.fullmatch(digits):
        raise TarError(f"the archive has {digits!r} where a number should be")
    return int(digits or b"0", 8)


def _decimal(pax: dict[bytes, bytes], key: bytes, default: int) -> int:
    value = pax.get(key)
    if value is None:
        return default
    if not _DECIMAL.fullmatch(value):
        raise TarError(f"the archive has {value[:40]!r} where a number should be")
    return int(value.partition(b".")[0])


def _time(text: bytes | None, default: int) -> int:
    if text is None:
        return default * 10**9
    if _SMALL_TIME.fullmatch(text):
        return int(float(text) * 10**9)
    if not _DECIMAL.fullmatch(text):
        raise TarError(f"the archive has {text[:40]!r} where a time should be")
    whole, _, part = text.partition(b".")
    return int(whole) * 10**9 + int(part[:9].ljust(9, b"0"))
