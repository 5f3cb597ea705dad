"""A tar archive as a stream of events. No I/O; constant memory; made for archives that an attacker wrote."""

from __future__ import annotations

from collections.abc import Iterator

from paddock.errors import GuestProtocolError
from paddock.wire.tar import Entry, Headers, TarError, padding

_METADATA_BYTES = 64 << 10
_MOST_RECORDS = 64
"""Of one extended header: a guest says a path, a target, a size and a time, and a path has at most 4096 bytes."""


class TarReader:
    """Feed it bytes; it gives entries, and after each file's entry the bytes of that file. What follows the archive's
    end is ignored."""

    def __init__(self) -> None:
        self.headers = Headers(most_bytes=_METADATA_BYTES, most_records=_MOST_RECORDS)
        self._buffer = bytearray()
        self._left = 0  # bytes of the current file that are still to come
        self._padding = 0

    def feed(self, data: bytes) -> Iterator[Entry | bytes]:
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
                try:
                    entry = self.headers.take(block)
                except TarError as error:
                    raise GuestProtocolError(str(error)) from None
                if entry is not None:
                    self._left, self._padding = entry.size, padding(entry.size)
                    yield entry
