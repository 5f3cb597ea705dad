"""Frames of WebSocket are read and written as wsproto does it."""

from __future__ import annotations

from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st
from wsproto.frame_protocol import FrameProtocol, ParseFailed
from wsproto.frame_protocol import Opcode as TheirOpcode

from paddock.gateway.protocols.websocket import (
    CloseCode,
    FrameReader,
    Opcode,
    Violation,
    mask,
    write_close,
    write_frame,
)

PAYLOADS = st.one_of(
    st.binary(max_size=130),
    st.text(max_size=60).map(str.encode),
    st.sampled_from([b"x" * 125, b"x" * 126, b"x" * 65_535, b"x" * 65_536]),
    st.tuples(st.integers(0, 5100), st.text(max_size=20)).map(
        lambda close: close[0].to_bytes(2, "big") + close[1].encode()
    ),
)


class Read(NamedTuple):
    """All that came of a stream: messages, with False for one that hasn't ended, control frames, and the error."""

    messages: list[tuple[int, bytes, bool]]
    control: list[tuple[int, bytes]]
    error: int | None


def ours(pieces: list[bytes], *, masked: bool) -> Read:
    reader, read = FrameReader(masked=masked), Read([], [], None)
    try:
        for piece in pieces:
            for opcode, payload, last in reader.feed(piece):
                take(read, opcode, payload, last)
    except Violation as error:
        return read._replace(error=error.code)
    return read


def theirs(pieces: list[bytes], *, masked: bool) -> Read:
    reader, read = FrameProtocol(not masked, []), Read([], [], None)
    try:
        for piece in pieces:
            reader.receive_bytes(piece)
            for frame in reader.received_frames():
                if isinstance(frame.payload, tuple):
                    code, reason = frame.payload
                    payload = b"" if code == 1005 else code.to_bytes(2, "big") + reason.encode()
                else:
                    payload = frame.payload.encode() if isinstance(frame.payload, str) else bytes(frame.payload)
                take(read, frame.opcode, payload, frame.message_finished)
    except ParseFailed as error:
        return read._replace(error=error.code)
    return read


def take(read: Read, opcode: int, payload: bytes, last: bool) -> None:
    if opcode >= TheirOpcode.CLOSE:
        read.control.append((opcode, payload))
    elif read.messages and not read.messages[-1][2]:
        begun = read.messages.pop()
        read.messages.append((begun[0], begun[1] + payload, last))
    else:
        read.messages.append((opcode, payload, last))


def same(one: Read, other: Read) -> None:
    assert (one.control, one.error) == (other.control, other.error)
    assert [(opcode, last) for opcode, _, last in one.messages] == [
        (opcode, last) for opcode, _, last in other.messages
    ]
    for (opcode, mine, last), (_, their, _) in zip(one.messages, other.messages, strict=True):
        # Of a text that hasn't ended, wsproto keeps back what is no letter yet.
        assert mine == their if last else mine.startswith(their), opcode


def cut(data: bytes, sizes: list[int]) -> list[bytes]:
    pieces, at = list[bytes](), 0
    for size in [*sizes, len(data)]:
        pieces.append(data[at : at + size])
        at += size
    return pieces


FRAMES = st.lists(st.tuples(st.sampled_from([*Opcode]), PAYLOADS, st.booleans()), max_size=6)


@given(FRAMES, st.booleans(), st.lists(st.integers(1, 40), max_size=20), st.data())
def test_a_stream_is_read_as_wsproto_reads_it(
    frames: list[tuple[Opcode, bytes, bool]], masked: bool, sizes: list[int], data: st.DataObject
) -> None:
    stream = bytearray(
        b"".join(write_frame(opcode, payload, masked=masked, last=last) for opcode, payload, last in frames) + bytes(16)
    )
    if data.draw(st.booleans()):
        stream[data.draw(st.integers(0, len(stream) - 1))] ^= data.draw(st.integers(1, 255))
    pieces = cut(bytes(stream), sizes)
    same(ours(pieces, masked=masked), theirs(pieces, masked=masked))


@given(st.binary(max_size=60), st.booleans(), st.lists(st.integers(1, 9), max_size=20))
def test_garbage_is_read_as_wsproto_reads_it(garbage: bytes, masked: bool, sizes: list[int]) -> None:
    pieces = cut(garbage + bytes(16), sizes)
    same(ours(pieces, masked=masked), theirs(pieces, masked=masked))


@given(st.integers(0, 5100), st.text(max_size=200), st.booleans())
def test_a_close_is_read_by_wsproto(code: int, reason: str, masked: bool) -> None:
    stream = [write_close(code, reason.encode(), masked=masked)]
    read = theirs(stream, masked=masked)
    same(ours(stream, masked=masked), read)
    if read.error is None:
        ((_, payload),) = read.control
        assert payload[:2] == code.to_bytes(2, "big")
        assert reason.encode().startswith(payload[2:])
        assert len(payload) > 120 or payload[2:] == reason.encode()


@given(st.binary(max_size=300), st.binary(min_size=4, max_size=4))
def test_a_mask_is_undone_by_itself(data: bytes, key: bytes) -> None:
    assert mask(data, key) == bytes(byte ^ key[at % 4] for at, byte in enumerate(data))
    assert mask(mask(data, key), key) == data


def test_nothing_follows_a_close() -> None:
    reader = FrameReader(masked=False)
    stream = write_close(CloseCode.GOING_AWAY, b"", masked=False) + write_frame(Opcode.PING, b"", masked=False)
    assert [frame.opcode for frame in reader.feed(stream)] == [Opcode.CLOSE]
    assert list(reader.feed(b"\xff\xff")) == []


@pytest.mark.parametrize("length", [125, 65_535])
def test_a_length_that_is_not_in_its_shortest_form_is_refused(length: int) -> None:
    stream = b"\x82\x7e\0" + bytes([length]) if length < 126 else b"\x82\x7f" + length.to_bytes(8, "big")
    with pytest.raises(Violation, match="shortest"):
        list(FrameReader(masked=False).feed(stream))
