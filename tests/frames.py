"""Frames of a guest, made by hand."""

from __future__ import annotations

from paddock.wire import Kind
from paddock.wire import pack as pack
from paddock.wire.guest import Credit


def data(channel: int, stream: int, content: bytes) -> bytes:
    return pack(Kind.DATA, channel, content, flags=stream)


def eof(channel: int, stream: int) -> bytes:
    return pack(Kind.EOF, channel, flags=stream)


def credit(channel: int, stream: int, count: int) -> bytes:
    return pack(Kind.CREDIT, channel, Credit(bytes=count).pack(), flags=stream)


def close(channel: int) -> bytes:
    return pack(Kind.CLOSE, channel)
