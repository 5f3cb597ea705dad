"""Frames of a guest (`docs/design/guest.md`): a codec without I/O. Everything that arrives is an attacker's."""

from __future__ import annotations

from struct import Struct
from typing import NamedTuple

from paddock.wire import WireError
from paddock.wire.guest import Credit, Kind, Limit, Stream

MAX_CHANNEL = 0xFFFF_FFFF
_HEADER = Struct("<IHHIBBH")
_KINDS = {int(kind): kind for kind in Kind if kind is not Kind.OPEN}
"""Those that a guest may send."""
_STREAMED = (Kind.DATA, Kind.EOF, Kind.CREDIT)
_EMPTY = (Kind.EOF, Kind.CLOSE)


class ProtocolError(Exception):
    """What arrived violates the protocol. The caller must drop the connection."""


class Frame(NamedTuple):
    """`stream` belongs to DATA, EOF and CREDIT, `data` to DATA, `credit` to CREDIT, `body` to the others."""

    kind: Kind
    channel: int
    body: bytes = b""
    stream: int = 0
    data: bytes = b""
    credit: int = 0


class Decoder:
    """Bytes in, frames out. Holds at most one unfinished frame; after a ProtocolError it is of no more use."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes | memoryview) -> list[Frame]:
        buffer = self._buffer
        buffer += data
        frames: list[Frame] = []
        position, end = 0, len(buffer)
        while end - position >= _HEADER.size:
            length, number, code, channel, descriptors, zero, zeros = _HEADER.unpack_from(buffer, position)
            kind = _KINDS.get(number)
            if kind is None or descriptors or zero or zeros:
                raise ProtocolError("a header that is not of this protocol")
            if length > Limit.BODY:
                raise ProtocolError(f"{kind.name} of {length} bytes, more than it may hold")
            start = position + _HEADER.size
            if end - start < length:
                break
            position = start + length
            frames.append(_parse(kind, code, channel, bytes(buffer[start:position])))
        del buffer[:position]
        return frames


def _parse(kind: Kind, code: int, channel: int, body: bytes) -> Frame:
    if (channel == 0) != (kind is Kind.HELLO):
        raise ProtocolError(f"{kind.name} on channel {channel}")
    if code > (Stream.ERR if kind in _STREAMED else 0):
        raise ProtocolError(f"{kind.name} of the unknown kind {code}")
    if kind is Kind.DATA:
        if not body:
            raise ProtocolError("DATA of no bytes")
        return Frame(kind, channel, stream=code, data=body)
    if kind is Kind.CREDIT:
        try:
            credit = Credit.unpack(body).bytes
        except WireError as error:
            raise ProtocolError(str(error)) from None
        if not 0 < credit <= Limit.CREDIT:
            raise ProtocolError(f"CREDIT of {credit} bytes")
        return Frame(kind, channel, stream=code, credit=credit)
    if kind in _EMPTY and body:
        raise ProtocolError(f"{kind.name} with a body")
    return Frame(kind, channel, body=body, stream=code)


def pack(kind: Kind, channel: int, body: bytes = b"", *, code: int = 0, descriptors: int = 0) -> bytes:
    return _HEADER.pack(len(body), kind, code, channel, descriptors, 0, 0) + body


def data_header(channel: int, stream: int, length: int) -> bytes:
    """Return what stands before `length` bytes of data, at most Limit.BODY."""
    return _HEADER.pack(length, Kind.DATA, stream, channel, 0, 0, 0)


def pack_eof(channel: int, stream: int) -> bytes:
    return pack(Kind.EOF, channel, code=stream)


def pack_credit(channel: int, stream: int, credit: int) -> bytes:
    return pack(Kind.CREDIT, channel, Credit(bytes=credit).pack(), code=stream)


def pack_close(channel: int) -> bytes:
    return pack(Kind.CLOSE, channel)
