"""The frames of a pilot's `control`: those of the guest (`docs/design/guest.md`), with objects in JSON for bodies. A
codec without I/O.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from enum import IntEnum
from struct import Struct
from typing import Any, NamedTuple, NoReturn

# As `paddock.wire.guest` has them, which is not in the kit; a test compares them.
VERSION = 3
MAX_REQUEST = 2162688
MAX_BODY = 65536
WINDOW = 262144

MAX_DEPTH = 8
OUT = 1
"""The only stream."""

_HEADER = Struct("<IHHIBBH")
_HELLO = Struct("<II")

Json = dict[str, Any]


class ProtocolError(Exception):
    """What arrived is not the protocol. The connection must be dropped."""


class Kind(IntEnum):
    HELLO = 1
    OPEN = 2
    REPLY = 3
    ERROR = 4
    DATA = 5
    EOF = 6
    CREDIT = 7
    EXIT = 9
    CLOSE = 10


_HEARD = {int(kind): kind for kind in (Kind.HELLO, Kind.OPEN, Kind.CREDIT, Kind.CLOSE)}
"""Those that a host sends here."""


class Frame(NamedTuple):
    kind: Kind
    channel: int
    body: bytes
    descriptors: int


class Decoder:
    """Bytes in, frames out. Holds at most one unfinished frame; after a ProtocolError it is of no more use."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[Frame]:
        buffer = self._buffer
        buffer += data
        frames: list[Frame] = []
        position, end = 0, len(buffer)
        while end - position >= _HEADER.size:
            length, number, _, channel, descriptors, _, _ = _HEADER.unpack_from(buffer, position)
            kind = _HEARD.get(number)
            if kind is None or (channel == 0) != (kind is Kind.HELLO):
                raise ProtocolError(f"a frame of kind {number} on channel {channel}")
            if length > (MAX_REQUEST if kind is Kind.OPEN else MAX_BODY):
                raise ProtocolError(f"{kind.name} of {length} bytes, more than it may hold")
            start = position + _HEADER.size
            if end - start < length:
                break
            position = start + length
            frames.append(Frame(kind, channel, bytes(buffer[start:position]), descriptors))
        del buffer[:position]
        return frames

    @property
    def pending_bytes(self) -> int:
        return len(self._buffer)


def _no_constant(name: str) -> NoReturn:
    raise ProtocolError(f"{name} is not JSON")


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ProtocolError("a number that is not finite")
    return value


def _small(text: str) -> int:
    if len(text) > 20:
        raise ProtocolError("an integer of more than 64 bits")
    return int(text)


_decoder = json.JSONDecoder(parse_constant=_no_constant, parse_float=_finite, parse_int=_small)
_encoder = json.JSONEncoder(separators=(",", ":"), allow_nan=False)


def parse_json(payload: bytes) -> Json:
    """One object in ASCII, at most `MAX_DEPTH` deep. Bytes that are not UTF-8 travel as surrogate escapes."""
    try:
        text = payload.decode("ascii")
        _check_depth(text)
        value = _decoder.decode(text)
    except (ValueError, RecursionError) as error:
        raise ProtocolError(f"invalid JSON: {error}"[:200]) from None
    if not isinstance(value, dict):
        raise ProtocolError("JSON that is not an object")
    return value  # pyright: ignore[reportUnknownVariableType]


_STRINGS = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"?', re.DOTALL)
_BRACKETS = re.compile(r"[\[\]{}]")


def _check_depth(text: str) -> None:
    # Brackets inside strings count as well, so this is only the quick way to say yes.
    if text.count("[") + text.count("{") <= MAX_DEPTH:
        return
    depth = 0
    for character in _BRACKETS.findall(_STRINGS.sub("", text)):
        if character in "[{":
            depth += 1
            if depth > MAX_DEPTH:
                raise ProtocolError("JSON nested too deeply")
        else:
            depth -= 1


def dump_json(value: Mapping[str, object]) -> bytes:
    return _encoder.encode(value).encode("ascii")


def pack(kind: Kind, channel: int, body: bytes = b"", *, stream: int = 0) -> bytes:
    """ProtocolError if it would be too large for the other side."""
    if len(body) > MAX_BODY:
        raise ProtocolError(f"{kind.name} of {len(body)} bytes, more than {MAX_BODY}")
    return _HEADER.pack(len(body), kind, stream, channel, 0, 0, 0) + body


def pack_hello(pid: int) -> bytes:
    return pack(Kind.HELLO, 0, _HELLO.pack(VERSION, pid))


def check_hello(frame: Frame) -> None:
    """ProtocolError: it is none in our version."""
    if frame.kind is not Kind.HELLO or len(frame.body) != _HELLO.size or _HELLO.unpack(frame.body) != (VERSION, 0):
        raise ProtocolError("no greeting in our version")
