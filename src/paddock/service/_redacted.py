"""What a command prints, without the values of its sandbox's secrets: wherever one came from, it goes no further."""

from __future__ import annotations

from paddock.egress._redact import Redaction
from paddock.model import ByteReader


def redacted(inner: ByteReader, redaction: Redaction | None) -> ByteReader:
    """Itself, where there is nothing to take out."""
    return inner if redaction is None else _RedactedReader(inner, redaction)


class _RedactedReader:
    def __init__(self, inner: ByteReader, redaction: Redaction) -> None:
        self._inner, self._stream = inner, redaction.stream(escapes=False)
        self._ready, self._ended = b"", False

    async def read(self, size: int = 65536) -> bytes:
        # What is all held back is no end.
        while size and not self._ready and not self._ended:
            data = await self._inner.read(size)
            self._ended = not data
            self._ready = self._stream.feed(data) if data else self._stream.end()
        data, self._ready = self._ready[:size], self._ready[size:]
        return data

    async def aclose(self) -> None:
        await self._inner.aclose()
