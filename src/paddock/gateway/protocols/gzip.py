"""gzip, in pieces, with a limit on the decompressed size."""

from __future__ import annotations

import sys
import zlib

_GZIP = 16 + zlib.MAX_WBITS
_FREE_BYTES = 1 << 20
_RATIO = 200
TURN_BYTES = 64 << 10
"""Most decoded bytes to search in one turn: escapes take long."""


class Undecodable(ValueError):
    """The data isn't gzip, or decompresses to far more than honest content."""


class Gzip:
    """Decodes one stream and encodes another."""

    def __init__(self) -> None:
        self._decoder = zlib.decompressobj(_GZIP)
        self._encoder = zlib.compressobj(6, zlib.DEFLATED, _GZIP)
        self._read = self._made = 0
        self._rest = b""

    @property
    def lags(self) -> bool:
        """Tell whether the next call of `decode` has more, even without new data."""
        return bool(self._rest)

    def decode(self, data: bytes, most: int = sys.maxsize) -> bytes:
        """Decode more data, to at most so many bytes for now."""
        parts: list[bytes] = []
        self._read += len(data)
        data = self._rest + data
        while data and most > 0:
            if self._decoder.eof:  # another member follows
                self._decoder = zlib.decompressobj(_GZIP)
            room = _FREE_BYTES + _RATIO * self._read - self._made
            try:
                part = self._decoder.decompress(data, min(room + 1, most))
            except zlib.error as error:
                raise Undecodable(str(error)) from None
            if len(part) > room:
                raise Undecodable(f"more than {_RATIO} bytes of each")
            self._made += len(part)
            most -= len(part)
            parts.append(part)
            data = self._decoder.unconsumed_tail or self._decoder.unused_data
        self._rest = data
        return b"".join(parts)

    def encode(self, data: bytes, *, last: bool = False) -> bytes:
        """Encode data and return all of it at once: a program that streams waits for an answer."""
        output = self._encoder.compress(data)
        return output + self._encoder.flush(zlib.Z_FINISH if last else zlib.Z_SYNC_FLUSH)
