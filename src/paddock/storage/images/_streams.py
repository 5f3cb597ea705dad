"""The bytes of a layer on their way: hashed as they lie there, unpacked, counted, hashed as they are unpacked."""

from __future__ import annotations

import hashlib
import os
import zlib
from typing import IO, NamedTuple, Protocol, cast

from paddock.errors import ImageInvalid

from ._limits import Budget

_CHUNK = 1 << 18
_GZIP, _ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"
_ZSTD_WINDOW = 128 << 20  # what `zstd -d` takes at most if nobody tells it otherwise


class Readable(Protocol):
    def read(self, size: int = -1, /) -> bytes: ...


class Piece(NamedTuple):
    """A part of a file, or all of it. The descriptor is whoever asked for it's to close."""

    fd: int
    offset: int
    size: int


class Stored:
    """The bytes of a piece, hashed; `digest` None: nobody has said what it has to be."""

    def __init__(self, piece: Piece, digest: str | None) -> None:
        self._piece, self._expected, self._at = piece, digest, 0
        self._hash = None if digest is None else hashlib.new(digest.partition(":")[0])

    def read(self, size: int = -1, /) -> bytes:
        left = self._piece.size - self._at
        data = os.pread(self._piece.fd, min(left, _CHUNK if size < 0 else size), self._piece.offset + self._at)
        self._at += len(data)
        if self._hash is not None:
            self._hash.update(data)
        return data

    def finish(self) -> None:
        """ImageInvalid: it was another one, or cut short."""
        while self.read(_CHUNK):
            pass
        if self._at != self._piece.size:
            raise ImageInvalid(f"a layer ends after {self._at} of {self._piece.size} bytes")
        if self._hash is not None and f"{self._hash.name}:{self._hash.hexdigest()}" != self._expected:
            raise ImageInvalid(f"a layer is not {self._expected}: its digest is {self._hash.hexdigest()}")


class _Gzip:
    """Members of gzip one after the other, as some tools write them on purpose. Never more than asked for in memory."""

    def __init__(self, source: Readable) -> None:
        self._source = source
        self._member = zlib.decompressobj(wbits=31)
        self._rest = b""

    def read(self, size: int = -1, /) -> bytes:
        while True:
            if self._member.eof:
                self._rest = self._member.unused_data or self._source.read(_CHUNK)
                if not self._rest.strip(b"\0"):  # padding
                    return b""
                self._member = zlib.decompressobj(wbits=31)
            self._rest = self._rest or self._source.read(_CHUNK)
            try:
                data = self._member.decompress(self._rest, size)
            except zlib.error as error:
                raise ImageInvalid(f"a layer cannot be unpacked: {error}") from None
            ended = not self._rest
            self._rest = self._member.unconsumed_tail
            if data:
                return data
            if ended and not self._member.eof:
                raise ImageInvalid("a layer cannot be unpacked: it ends too early")


class _Zstd:
    def __init__(self, source: Readable) -> None:
        import zstandard  # only where an image is compressed so

        self._error = zstandard.ZstdError
        decompressor = zstandard.ZstdDecompressor(max_window_size=_ZSTD_WINDOW)
        self._reader = decompressor.stream_reader(cast("IO[bytes]", source), read_across_frames=True)

    def read(self, size: int = -1, /) -> bytes:
        try:
            return self._reader.read(size)
        except self._error as error:
            raise ImageInvalid(f"a layer cannot be unpacked: {error}") from None


class _Begun:
    """A source of which the beginning was looked at."""

    def __init__(self, head: bytes, source: Readable) -> None:
        self._head, self._source = head, source

    def read(self, size: int = -1, /) -> bytes:
        if not self._head:
            return self._source.read(size)
        data, self._head = (self._head, b"") if size < 0 else (self._head[:size], self._head[size:])
        return data


class Unpacked:
    """What comes out of the compression, whichever it is: hashed, and charged to the budget."""

    def __init__(self, source: Readable, budget: Budget, diff_id: str) -> None:
        head = source.read(len(_ZSTD))
        begun = _Begun(head, source)
        skippable = len(head) == 4 and head[0] & 0xF0 == 0x50 and head[1:] == b"\x2a\x4d\x18"
        if head.startswith(_GZIP):
            self._source: Readable = _Gzip(begun)
        elif head == _ZSTD or skippable:
            self._source = _Zstd(begun)
        else:
            self._source = begun
        self._budget, self._expected = budget, diff_id
        self._hash = hashlib.new(diff_id.partition(":")[0])

    def read(self, size: int, /) -> bytes:
        """At most so many, none at the end. ImageInvalid, ResourceExhausted."""
        data = self._source.read(min(size, _CHUNK))
        self._budget.check(len(data))
        self._budget.bytes -= len(data)
        self._hash.update(data)
        return data

    def finish(self) -> None:
        """ImageInvalid: it was not what the image's configuration says."""
        while self.read(_CHUNK):
            pass
        found = f"{self._hash.name}:{self._hash.hexdigest()}"
        if found != self._expected:
            raise ImageInvalid(f"a layer unpacks to {found}, and the image's configuration says {self._expected}")
