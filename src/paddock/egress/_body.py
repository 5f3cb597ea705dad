"""Bodies of HTTP/1 messages: how far one goes in the bytes that came, and how it is written again."""

from __future__ import annotations

import re

from ._http1 import BadMessage, Fields, Head, Response, head_end, read_fields

MAX_TRAILER_BYTES = 8 << 10
_SIZE_LINE = 4096
_SIZE = re.compile(rb"([0-9A-Fa-f]{1,15})[ \t]*(;[\t\x20-\x7e\x80-\xff]*)?")
_NO_TRAILERS = frozenset(
    {b"host", b"content-length", b"transfer-encoding", b"connection", b"authorization", b"cookie", b"set-cookie"}
    | {b"content-encoding", b"content-type", b"upgrade", b"te", b"trailer"}
)


class Body:
    """Takes what belongs to one body from the front of a buffer. `extensions`: those of chunks are skipped, not
    refused (what comes from inside may not have any)."""

    def __init__(self, head: Head, *, to_the_end: bool = False, extensions: bool = False) -> None:
        """`to_the_end`: without a length it goes on to the end of the connection."""
        none = isinstance(head, Response) and head.bodiless
        self._chunked = head.chunked and not none
        self._left: int | None = 0 if none or head.chunked or (head.length is None and not to_the_end) else head.length
        self._extensions, self._in_chunk = extensions, False
        self.done = self._left == 0 and not self._chunked
        self.trailers: Fields = []

    def take(self, buffer: bytearray) -> bytes:
        """The next bytes of content, of those that are there; empty: more is needed, or it is `done`."""
        if self._chunked:
            return self._take_chunks(buffer)
        if self._left is None:
            taken = bytes(buffer)
            buffer.clear()
            return taken
        taken = bytes(buffer) if len(buffer) <= self._left else bytes(memoryview(buffer)[: self._left])
        del buffer[: len(taken)]
        self._left -= len(taken)
        self.done = self._left == 0
        return taken

    def end(self) -> None:
        """The connection has ended."""
        if self._left is None and not self._chunked:
            self.done = True
        if not self.done:
            raise BadMessage("the connection ended within a body")

    def _take_chunks(self, buffer: bytearray) -> bytes:
        pieces: list[bytes] = []
        while not self.done:
            if self._left:
                piece = bytes(memoryview(buffer)[: self._left])
                if not piece:
                    break
                del buffer[: len(piece)]
                self._left -= len(piece)
                pieces.append(piece)
            elif not (self._end_chunk(buffer) and self._begin_chunk(buffer)):
                break
        return b"".join(pieces)

    def _end_chunk(self, buffer: bytearray) -> bool:
        if self._in_chunk:
            if len(buffer) < 2:
                return False
            if not buffer.startswith(b"\r\n"):
                raise BadMessage("a chunk is longer than it said")
            del buffer[:2]
            self._in_chunk = False
        return True

    def _begin_chunk(self, buffer: bytearray) -> bool:
        end = buffer.find(b"\n", 0, _SIZE_LINE)
        if end < 0:
            if len(buffer) >= _SIZE_LINE:
                raise BadMessage("the size of a chunk has no end")
            return False
        match = _SIZE.fullmatch(buffer, 0, end - 1) if buffer.startswith(b"\r", end - 1) else None
        if match is None:
            raise BadMessage("the size of a chunk is malformed")
        if match[2] and not self._extensions:
            raise BadMessage("a chunk with extensions")
        size = int(match[1], 16)
        if size:
            self._left, self._in_chunk = size, True
            del buffer[: end + 1]
            return True
        return self._end(buffer, end + 1)

    def _end(self, buffer: bytearray, start: int) -> bool:
        """The last chunk was read up to `start`; trailers follow, if any."""
        if buffer.startswith(b"\r\n", start):
            del buffer[: start + 2]
        else:
            end = head_end(buffer, start)
            if end < 0:
                if len(buffer) - start > MAX_TRAILER_BYTES:
                    raise BadMessage(f"trailers of more than {MAX_TRAILER_BYTES} bytes")
                return False
            fields, _ = read_fields(bytes(buffer[start:end]))
            self.trailers = [field for field in fields if field[0].lower() not in _NO_TRAILERS]
            del buffer[:end]
        self.done = True
        return True


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def last_chunk(trailers: Fields) -> bytes:
    if not trailers:
        return b"0\r\n\r\n"
    return b"0\r\n" + b"".join(b"%b: %b\r\n" % field for field in trailers) + b"\r\n"
