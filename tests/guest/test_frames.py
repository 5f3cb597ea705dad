"""The codec of a pilot's `control`: whatever arrives, it gives frames or refuses, and holds no more than one unfinished
frame."""

from __future__ import annotations

import contextlib
import json
import os
import socket

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paddock.backends import _guest_frames as host
from paddock.guest import _frames as pilot
from paddock.guest._connection import Channel, Connection
from paddock.guest._frames import Decoder, Kind, ProtocolError, parse_json
from paddock.guest._loop import Loop
from paddock.wire.guest import VERSION, GuestHello, HostHello, Limit, Stream

HEADER_BYTES = 16
HELLO = host.pack(Kind.HELLO, 0, HostHello(version=VERSION).pack())
channels = st.integers(1, 0xFFFFFFFF)
frames = st.one_of(
    st.builds(lambda c, b, d: (Kind.OPEN, c, b, d), channels, st.binary(max_size=500), st.integers(0, 4)),
    st.builds(lambda c: (Kind.CLOSE, c, b"", 0), channels),
)


def packed(kind, channel, body, descriptors):
    return host.pack(kind, channel, body, descriptors=descriptors)


def test_both_sides_have_the_same_numbers():
    assert (pilot.VERSION, pilot.MAX_REQUEST, pilot.MAX_BODY) == (VERSION, Limit.OPEN_BODY, Limit.BODY)
    assert (pilot.WINDOW, pilot.OUT) == (Limit.WINDOW, Stream.OUT)
    assert {kind.name: int(kind) for kind in Kind}.items() <= {kind.name: int(kind) for kind in host.Kind}.items()


def test_the_host_understands_what_a_pilot_says():
    wire = pilot.pack_hello(7) + pilot.pack(Kind.DATA, 1, b"x", stream=1) + pilot.pack(Kind.EXIT, 1, b"{}")
    hello, data, end = host.Decoder().feed(wire)
    assert GuestHello.unpack(hello.body) == GuestHello(version=VERSION, pid=7)
    assert (data.stream, data.data, end.kind, end.body) == (1, b"x", Kind.EXIT, b"{}")


@given(st.lists(frames, max_size=6), st.data())
def test_what_is_packed_is_decoded_however_it_is_cut(sequence, data):
    wire = b"".join(packed(*frame) for frame in sequence)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(wire)), max_size=8)))
    decoder = Decoder()
    found = []
    for start, end in zip([0, *cuts], [*cuts, len(wire)], strict=True):
        found += decoder.feed(wire[start:end])
    assert found == sequence
    assert decoder.pending_bytes == 0


@given(st.lists(st.binary(max_size=200), max_size=20))
def test_noise_is_refused_or_waited_for_and_never_more(pieces):
    decoder = Decoder()
    for piece in pieces:
        try:
            decoder.feed(piece)
        except ProtocolError:
            return
        assert decoder.pending_bytes < HEADER_BYTES + pilot.MAX_REQUEST


@pytest.mark.parametrize(
    "wire",
    [
        host.pack(host.Kind.DATA, 1, b"x"),
        host.pack(host.Kind.REPLY, 1),
        host.pack(Kind.CLOSE, 0),
        host.pack(Kind.HELLO, 1),
        host.pack(Kind.CLOSE, 1, bytes(pilot.MAX_BODY + 1))[:HEADER_BYTES],
        host.pack(Kind.OPEN, 1, bytes(pilot.MAX_REQUEST + 1))[:HEADER_BYTES],
    ],
)
def test_frames_of_the_wrong_shape_are_refused(wire):
    with pytest.raises(ProtocolError):
        Decoder().feed(wire)


def talk(wire: bytes, fds: tuple[int, ...] = ()) -> tuple[list[dict], bytes]:
    """What a connection serves of it, and what it says, until it has hung up or the host has."""
    served: list[dict] = []
    loop = Loop()
    ours, theirs = socket.socketpair()

    def serve(channel: Channel, request: dict, descriptors: list[int]) -> None:
        served.append(request)
        channel.pour({"text": "x" * 100_000}) if request.get("op") == "long" else channel.answer({})

    Connection(loop, theirs, serve, lambda connection: loop.stop())
    with ours:
        socket.send_fds(ours, [wire], fds)
        ours.shutdown(socket.SHUT_WR)
        loop.run()
        said = b""
        with contextlib.suppress(ConnectionError):
            while data := ours.recv(1 << 20):
                said += data
    return served, said


def test_more_than_an_answer_holds_comes_as_a_stream():
    served, said = talk(HELLO + host.pack(Kind.OPEN, 1, b'{"op":"long"}') + host.pack_credit(1, 1, 5))
    _, reply, *stream, eof, close = host.Decoder().feed(said)
    assert (served, reply.body, eof.kind, close.kind) == ([{"op": "long"}], b"{}", Kind.EOF, Kind.CLOSE)
    assert json.loads(b"".join(frame.data for frame in stream)) == {"text": "x" * 100_000}


def test_an_empty_request_is_a_ping():
    assert talk(HELLO + host.pack(Kind.OPEN, 1))[0] == [{"op": "ping"}]


@pytest.mark.parametrize(
    "wire",
    [
        host.pack(Kind.OPEN, 1, b"{}"),
        host.pack(Kind.HELLO, 0, HostHello(version=VERSION + 1).pack()) + host.pack(Kind.OPEN, 1, b"{}"),
        HELLO + HELLO + host.pack(Kind.OPEN, 1, b"{}"),
        HELLO + host.pack(Kind.CLOSE, 1) + host.pack(Kind.OPEN, 1, b"{}"),
        HELLO + host.pack(Kind.OPEN, 1, b"{}", descriptors=1),
        HELLO + host.pack(Kind.OPEN, 1, b"[]"),
    ],
)
def test_what_is_no_conversation_is_not_served(wire):
    assert talk(wire)[0] == []


def test_descriptors_that_nobody_takes_are_closed():
    reader, writer = os.pipe()
    talk(HELLO + host.pack(Kind.OPEN, 1, b"{}", descriptors=1), (writer,))
    talk(HELLO + host.pack(Kind.OPEN, 1, b"{}"), (writer, writer))
    os.close(writer)
    assert os.read(reader, 1) == b""
    os.close(reader)


@pytest.mark.parametrize(
    "payload",
    [
        b"[]",
        b"1",
        b"",
        b"{",
        b'{"a":NaN}',
        b'{"a":Infinity}',
        b'{"a":-Infinity}',
        b'{"a":1e999}',
        b'{"a":' + b"9" * 5000 + b"}",
        b'{"a":' * 9 + b"1" + b"}" * 9,
        b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        '{"a":"ö"}'.encode(),
        b'{"a":"\xff"}',
        b'{"a":1}{"b":2}',
        b'{"a":1} x',
    ],
)
def test_json_that_is_not_one_small_plain_object_is_refused(payload):
    with pytest.raises(ProtocolError):
        parse_json(payload)


def test_brackets_in_strings_are_no_depth():
    body = {"a": '[[[[[[[[[[[[{{{{{{"\\"' * 10, "b": [[[[[[[]]]]]]]}
    assert parse_json(json.dumps(body).encode()) == body
