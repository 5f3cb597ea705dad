"""Read and write frames of WebSocket (RFC 6455, section 5). Pure.

No extension is ever agreed on, so a reserved bit is an error.
"""

from __future__ import annotations

import codecs
import os
from collections.abc import Iterator
from enum import IntEnum
from typing import NamedTuple

MAX_CONTROL = 125
_MAX_REASON = MAX_CONTROL - 2
_WIDTHS = {126: 2, 127: 8}
_XOR = [bytes(byte ^ other for other in range(256)) for byte in range(256)]
_CODES = frozenset({*range(1000, 1004), *range(1007, 1014), *range(3000, 5000)})
"""Codes that a close frame may carry. The others below 5000 are reserved."""


class Opcode(IntEnum):
    CONTINUATION = 0
    TEXT = 1
    BINARY = 2
    CLOSE = 8
    PING = 9
    PONG = 10


class CloseCode(IntEnum):
    GOING_AWAY = 1001
    PROTOCOL_ERROR = 1002
    NOT_UTF8 = 1007
    POLICY_VIOLATION = 1008


class Violation(Exception):
    """The reason why a connection can't go on. `code` goes to the client."""

    def __init__(self, code: CloseCode, reason: str) -> None:
        super().__init__(reason)
        self.code = code


class Frame(NamedTuple):
    """A control frame, or a piece of a message. `opcode` is the message's in each of its pieces."""

    opcode: Opcode
    payload: bytes
    last: bool


class FrameReader:
    """The frames of one direction. `masked`: a client sends them."""

    def __init__(self, *, masked: bool) -> None:
        self._masked = masked
        self._buffer = bytearray()
        self._control: Opcode | None = None  # what the current frame is, if not a piece of a message
        self._message: Opcode | None = None
        self._text = codecs.getincrementaldecoder("utf-8")()
        self._final = self._inside = self._closed = False
        self._left = 0  # of the current frame's payload, if `_inside` one
        self._key = b""

    def feed(self, data: bytes) -> Iterator[Frame]:
        """Yield the frames that `data` completes, and messages piece by piece. Nothing follows a close frame.

        Raise Violation.
        """
        self._buffer += data
        while not self._closed and (self._inside or self._read_header()):
            if len(self._buffer) < (self._left if self._control else min(self._left, 1)):
                return
            payload = bytes(self._buffer[: self._left])
            del self._buffer[: self._left]
            if self._masked:
                payload, turn = mask(payload, self._key), len(payload) % 4
                self._key = self._key[turn:] + self._key[:turn]
            self._left -= len(payload)
            self._inside = self._left > 0
            yield self._control_frame(self._control, payload) if self._control else self._piece(payload)

    def _read_header(self) -> bool:
        """Begin a frame. False: its header isn't whole yet."""
        data = self._buffer
        if len(data) < 2:
            return False
        final, length = bool(data[0] & 0x80), data[1] & 0x7F
        if data[0] & 0x70:
            raise _broken("a frame has a bit of an extension")
        try:
            opcode = Opcode(data[0] & 0x0F)
        except ValueError:
            raise _broken(f"a frame has the unknown opcode {data[0] & 0x0F}") from None
        if opcode >= Opcode.CLOSE and (not final or length > MAX_CONTROL):
            raise _broken("a control frame is fragmented, or longer than 125 bytes")
        if bool(data[1] & 0x80) is not self._masked:
            raise _broken("a client's frame isn't masked" if self._masked else "a server's frame is masked")
        width = _WIDTHS.get(length, 0)
        end = 2 + width + 4 * self._masked
        if len(data) < end:
            return False
        if width:
            length = int.from_bytes(data[2 : 2 + width], "big")
            if length < (126 if width == 2 else 1 << 16) or length >> 63:
                raise _broken("a frame's length isn't in its shortest form")
        if opcode < Opcode.CLOSE:
            if (opcode is Opcode.CONTINUATION) is (self._message is None):
                raise _broken("a frame continues no message, or begins one inside another")
            self._message, self._final = self._message or opcode, final
        self._control = opcode if opcode >= Opcode.CLOSE else None
        self._key, self._left, self._inside = bytes(data[2 + width : end]), length, True
        del data[:end]
        return True

    def _control_frame(self, opcode: Opcode, payload: bytes) -> Frame:
        if opcode is Opcode.CLOSE:
            self._closed = True
            if payload and int.from_bytes(payload[:2], "big") not in _CODES:
                raise _broken("a close frame has a code that can't be sent")
            _decode(codecs.getincrementaldecoder("utf-8")(), payload[2:], final=True)
        return Frame(opcode, payload, last=True)

    def _piece(self, payload: bytes) -> Frame:
        assert self._message is not None
        opcode, last = self._message, self._final and not self._inside
        if opcode is Opcode.TEXT:
            _decode(self._text, payload, final=last)
        if last:
            self._message = None
        return Frame(opcode, payload, last)


def _decode(decoder: codecs.IncrementalDecoder, data: bytes, *, final: bool) -> None:
    try:
        decoder.decode(data, final)
    except UnicodeDecodeError as error:
        raise Violation(CloseCode.NOT_UTF8, f"a text isn't UTF-8: {error}") from None


def _broken(reason: str) -> Violation:
    return Violation(CloseCode.PROTOCOL_ERROR, reason)


def mask(data: bytes, key: bytes) -> bytes:
    """Return the bytes exclusive-or the key, over and over. The same again undoes it."""
    out = bytearray(data)
    for at, byte in enumerate(key):
        out[at::4] = out[at::4].translate(_XOR[byte])
    return bytes(out)


def write_frame(opcode: Opcode, payload: bytes, *, masked: bool, last: bool = True) -> bytes:
    length = len(payload)
    width = 0 if length < 126 else 2 if length < 1 << 16 else 8
    head = bytes([opcode | last << 7, (length if not width else 126 if width == 2 else 127) | masked << 7])
    head += length.to_bytes(width, "big") if width else b""
    if not masked:
        return head + payload
    key = os.urandom(4)
    return head + key + mask(payload, key)


def write_close(code: int, reason: bytes, *, masked: bool) -> bytes:
    """Return a close frame. A reason that is too long is cut between letters."""
    shown = reason[:_MAX_REASON].decode(errors="ignore").encode()
    return write_frame(Opcode.CLOSE, code.to_bytes(2, "big") + shown, masked=masked)
