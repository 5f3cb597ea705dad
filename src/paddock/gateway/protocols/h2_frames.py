"""Where frames of HTTP/2 begin and end, before the engine reads them: what is too much of anything, and GOAWAY, which
the engine would take for the end of all streams. Pure."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from .token_bucket import TokenBucket

MAX_FRAME_BYTES = 16 << 10
MAX_BLOCK_BYTES = 64 << 10
BURST, PER_SECOND = 2000.0, 200.0
_EARNS_BYTES = 1 << 10
_HEADER_BYTES = 9
_DATA, _HEADERS, _PUSH, _GOAWAY, _WINDOW, _CONTINUATION = 0, 1, 5, 7, 8, 9
_FREE = frozenset({_HEADERS, _WINDOW, _GOAWAY})
_END_STREAM, _END_HEADERS = 1, 4
_OPENING = frozenset({_HEADERS, _PUSH, _CONTINUATION})
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"


class Flood(Exception):
    """More than any honest peer sends; `code` is that of HTTP/2."""

    def __init__(self, what: str, code: int) -> None:
        super().__init__(what)
        self.code = code


class GoAway(msgspec.Struct, frozen=True):
    """Streams above `last` were not begun."""

    last: int
    code: int


class Frames:
    """Of one direction. `server`: a client's preface comes first."""

    def __init__(self, clock: Callable[[], float], *, server: bool) -> None:
        self._free = TokenBucket(PER_SECOND, BURST, clock)
        self._held = bytearray()
        self._preface = PREFACE if server else b""
        self._block = 0

    def feed(self, data: bytes | bytearray) -> list[bytes | GoAway]:
        """Whole frames, as they came. Flood: nothing that follows is read."""
        held = self._held
        held += data
        if self._preface and not self._skip_preface():
            return []
        at = start = 0
        found: list[bytes | GoAway] = []
        while len(held) - at >= _HEADER_BYTES:
            length, kind = int.from_bytes(held[at : at + 3], "big"), held[at + 3]
            if length > MAX_FRAME_BYTES:
                raise Flood(f"a frame of {length} bytes", 0x6)
            end = at + _HEADER_BYTES + length
            if end > len(held):
                break
            self._weigh(kind, held[at + 4], length)
            if kind == _GOAWAY:
                if at > start:
                    found.append(bytes(held[start:at]))
                found.append(_goaway(held[at + _HEADER_BYTES : end]))
                start = end
            at = end
        if at > start:
            found.append(bytes(held[start:at]))
        del held[:at]
        return found

    def _skip_preface(self) -> bool:
        """Skip the preface. Return whether all of it has come."""
        if not self._held.startswith(self._preface):
            if self._preface.startswith(self._held):
                return False
            raise Flood("no preface of HTTP/2", 0x1)
        del self._held[: len(self._preface)]
        self._preface = b""
        return True

    def _weigh(self, kind: int, flags: int, length: int) -> None:
        if kind in _OPENING:
            self._block = length + (self._block if kind == _CONTINUATION else 0)
            if self._block > MAX_BLOCK_BYTES:
                raise Flood(f"a header block of more than {MAX_BLOCK_BYTES} bytes", 0xB)
        if kind == _DATA and (length >= _EARNS_BYTES or flags & _END_STREAM):
            self._free.give()
        elif kind not in _FREE and not self._free.take():
            raise Flood("too many frames that carry nothing", 0xB)


def _goaway(payload: bytearray) -> GoAway:
    if len(payload) < 8:
        raise Flood("a GOAWAY that is cut short", 0x6)
    return GoAway(int.from_bytes(payload[:4], "big") & 0x7FFFFFFF, int.from_bytes(payload[4:8], "big"))
