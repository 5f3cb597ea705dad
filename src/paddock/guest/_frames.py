"""The frames of the protocol between host and guest: a codec without I/O, used by both sides.

Everything that arrives is an attacker's: bounds are checked before memory is taken. `docs/protocol.md` is the text.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from enum import IntEnum
from struct import Struct
from typing import Any, NamedTuple, NoReturn

VERSION = 2
CHUNK = 256 * 1024
"""Bytes of data that one DATA frame may carry."""
MAX_PAYLOAD = CHUNK + 64
MAX_REQUEST = 13 * 1024 * 1024
"""Bytes of an OPEN: the kernel's 2 MiB of arguments and environment, at worst six characters for each byte."""
WINDOW = 1024 * 1024
"""Bytes of one stream that may be under way before the receiver has granted more."""
MAX_WINDOW = 64 * 1024 * 1024
MAX_RESULT_BYTES = 32 * 1024 * 1024
"""Bytes of the lines that answer one request."""
MAX_LINE = 64 * 1024
"""Of one of them: two paths, at worst six characters for each byte, and what else it says."""
MAX_PATH = 4096
"""As the kernel has it, its NUL included: PATH_MAX, include/uapi/linux/limits.h."""
MAX_DEPTH = 8
MAX_CHANNEL = 0xFFFF_FFFF
STDIN, STDOUT, STDERR = 0, 1, 2

_HEADER = Struct("!IBI")
_DATA_HEADER = Struct("!IBIB")
_CREDIT = Struct("!BI")
HEADER_BYTES = _HEADER.size

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
    CONTROL = 8
    EXIT = 9
    CLOSE = 10


_KINDS = {int(kind): kind for kind in Kind}
_JSON_KINDS = frozenset({Kind.HELLO, Kind.OPEN, Kind.REPLY, Kind.ERROR, Kind.CONTROL, Kind.EXIT})


_NOTHING: Json = {}


class Frame(NamedTuple):
    """`body` is the parsed object of a JSON frame; `stream` and `data` belong to DATA, EOF and CREDIT."""

    kind: Kind
    channel: int
    body: Json = _NOTHING
    stream: int = 0
    data: bytes = b""
    credit: int = 0


class Decoder:
    """Bytes in, frames out. Holds at most one unfinished frame; after a ProtocolError it is of no more use.

    `request_bytes` is the most that an OPEN may hold: only a guest takes more there than in other frames.
    """

    def __init__(self, request_bytes: int = MAX_PAYLOAD) -> None:
        self._buffer = bytearray()
        self._request_bytes = request_bytes

    def feed(self, data: bytes | memoryview) -> list[Frame]:
        buffer = self._buffer
        buffer += data
        frames: list[Frame] = []
        position, end = 0, len(buffer)
        with memoryview(buffer) as view:
            while end - position >= HEADER_BYTES:
                length, number, channel = _HEADER.unpack_from(buffer, position)
                kind = _KINDS.get(number)
                if kind is None:
                    raise ProtocolError(f"unknown kind of frame {number}")
                if length > MAX_PAYLOAD and (kind is not Kind.OPEN or length > self._request_bytes):
                    raise ProtocolError(f"{kind.name} of {length} bytes, more than it may hold")
                start = position + HEADER_BYTES
                if end - start < length:
                    break
                position = start + length
                frames.append(_parse(kind, channel, view[start:position]))
        del buffer[:position]
        return frames

    @property
    def pending_bytes(self) -> int:
        return len(self._buffer)


def _parse(kind: Kind, channel: int, payload: memoryview) -> Frame:
    if (channel == 0) != (kind is Kind.HELLO):
        raise ProtocolError(f"{kind.name} on channel {channel}")
    if kind in _JSON_KINDS:
        return Frame(kind, channel, body=parse_json(bytes(payload)))
    if kind is Kind.DATA:
        if not 2 <= len(payload) <= CHUNK + 1:
            raise ProtocolError(f"DATA of {len(payload)} bytes")
        return Frame(kind, channel, stream=_stream(payload[0]), data=bytes(payload[1:]))
    if kind is Kind.CREDIT:
        if len(payload) != _CREDIT.size:
            raise ProtocolError("CREDIT of the wrong length")
        stream, credit = _CREDIT.unpack(payload)
        if not 0 < credit <= MAX_WINDOW:
            raise ProtocolError(f"CREDIT of {credit} bytes")
        return Frame(kind, channel, stream=_stream(stream), credit=credit)
    if len(payload) != (1 if kind is Kind.EOF else 0):
        raise ProtocolError(f"{kind.name} of the wrong length")
    return Frame(kind, channel, stream=_stream(payload[0]) if kind is Kind.EOF else 0)


def _stream(number: int) -> int:
    if number > STDERR:
        raise ProtocolError(f"unknown stream {number}")
    return number


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


def pack(kind: Kind, channel: int, body: Mapping[str, object]) -> bytes:
    """A JSON frame. ProtocolError if it would be too large for the other side."""
    payload = dump_json(body)
    most = MAX_REQUEST if kind is Kind.OPEN else MAX_PAYLOAD
    if len(payload) > most:
        raise ProtocolError(f"{kind.name} of {len(payload)} bytes, more than {most}")
    return _HEADER.pack(len(payload), kind, channel) + payload


def data_header(channel: int, stream: int, length: int) -> bytes:
    """What stands before `length` bytes of data, at most CHUNK."""
    return _DATA_HEADER.pack(length + 1, Kind.DATA, channel, stream)


def pack_eof(channel: int, stream: int) -> bytes:
    return _DATA_HEADER.pack(1, Kind.EOF, channel, stream)


def pack_credit(channel: int, stream: int, credit: int) -> bytes:
    return _HEADER.pack(_CREDIT.size, Kind.CREDIT, channel) + _CREDIT.pack(stream, credit)


def pack_close(channel: int) -> bytes:
    return _HEADER.pack(0, Kind.CLOSE, channel)
