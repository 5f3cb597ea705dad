"""Reading a tar archive that nobody is trusted with, in one pass and in little memory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from paddock.errors import ImageInvalidError
from paddock.wire.tar import Entry, Headers, TarError, padding, shown

_CHUNK = 1 << 18
_HEADER_BYTES = 1 << 20  # of pax headers and long names of one entry; an attribute may have 64 KiB
_PATH_BYTES = 4095


class Stream(Protocol):
    def read(self, size: int, /) -> bytes:
        """At most so many bytes; none only at the end."""
        ...


class Reader:
    """The entries of one archive. ImageInvalidError for whatever is no archive or no longer one."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._headers = Headers(most_bytes=_HEADER_BYTES, most_records=_HEADER_BYTES)
        self._left = 0  # of the content of the entry that was given last
        self._padding = 0

    def __iter__(self) -> Iterator[Entry]:
        while not self._headers.complete:
            for _ in self.content():
                pass
            if self._padding:
                self._read(self._padding)
                self._padding = 0
            entry = self._next()
            if entry is not None:
                self._left, self._padding = entry.size, padding(entry.size)
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
        data = self._read(self._headers.wanted, or_end=True)
        try:
            entry = self._headers.take(data) if data else self._headers.end()
        except TarError as error:
            raise ImageInvalidError(str(error)) from None
        for text in (entry.name, entry.target) if entry is not None else ():
            if b"\0" in text or len(text) > _PATH_BYTES:
                raise ImageInvalidError(f"{shown(text)} is no name of a file")
        return entry

    def _read(self, size: int, *, or_end: bool = False) -> bytes:
        data = self._stream.read(size)
        if not data and or_end:
            return b""
        while len(data) < size:
            more = self._stream.read(size - len(data))
            if not more:
                raise ImageInvalidError("the archive ends in the middle of a file")
            data += more
        return data
