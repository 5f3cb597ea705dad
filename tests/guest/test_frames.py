"""The codec: whatever arrives, it gives frames or refuses, and holds no more than one unfinished frame."""

from __future__ import annotations

import contextlib
import json
from struct import pack as pack_struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paddock.guest._frames import (
    CHUNK,
    HEADER_BYTES,
    MAX_DEPTH,
    MAX_PAYLOAD,
    MAX_WINDOW,
    Decoder,
    Kind,
    ProtocolError,
    data_header,
    pack,
    pack_close,
    pack_credit,
    pack_eof,
    parse_json,
)

channels = st.integers(1, 0xFFFFFFFF)
streams = st.integers(0, 2)
names = st.binary().map(lambda name: name.decode("utf-8", "surrogateescape"))
values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(1 << 63), 1 << 63)
    | st.floats(allow_nan=False, allow_infinity=False)
    | names,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=3),
    max_leaves=8,
)
bodies = st.dictionaries(names, values, max_size=4).filter(lambda body: _depth(body) <= MAX_DEPTH)
json_kinds = st.sampled_from([Kind.OPEN, Kind.REPLY, Kind.ERROR, Kind.CONTROL, Kind.EXIT])
frames = st.one_of(
    st.builds(lambda k, c, b: (pack(k, c, b), (k, c, b)), json_kinds, channels, bodies),
    st.builds(
        lambda c, s, d: (data_header(c, s, len(d)) + d, (Kind.DATA, c, (s, d))),
        channels,
        streams,
        st.binary(min_size=1, max_size=500),
    ),
    st.builds(lambda c, s: (pack_eof(c, s), (Kind.EOF, c, s)), channels, streams),
    st.builds(
        lambda c, s, n: (pack_credit(c, s, n), (Kind.CREDIT, c, (s, n))), channels, streams, st.integers(1, MAX_WINDOW)
    ),
    st.builds(lambda c: (pack_close(c), (Kind.CLOSE, c, None)), channels),
)


def _depth(value):
    if isinstance(value, dict):
        return 1 + max(map(_depth, value.values()), default=0)
    if isinstance(value, list):
        return 1 + max(map(_depth, value), default=0)
    return 0


def meaning(frame):
    content = {
        Kind.DATA: (frame.stream, frame.data),
        Kind.EOF: frame.stream,
        Kind.CREDIT: (frame.stream, frame.credit),
        Kind.CLOSE: None,
    }
    return frame.kind, frame.channel, content.get(frame.kind, frame.body)


@given(st.lists(frames, max_size=6), st.data())
def test_what_is_packed_is_decoded_however_it_is_cut(sequence, data):
    wire = b"".join(packed for packed, _ in sequence)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(wire)), max_size=8)))
    decoder = Decoder()
    found = []
    for start, end in zip([0, *cuts], [*cuts, len(wire)], strict=True):
        found += decoder.feed(wire[start:end])
    assert [meaning(frame) for frame in found] == [expected for _, expected in sequence]
    assert decoder.pending_bytes == 0


@given(st.lists(st.binary(max_size=200), max_size=20))
def test_noise_is_refused_or_waited_for_and_never_more(pieces):
    decoder = Decoder()
    for piece in pieces:
        try:
            decoder.feed(piece)
        except ProtocolError:
            return
        assert decoder.pending_bytes < HEADER_BYTES + MAX_PAYLOAD


@given(st.lists(frames, min_size=1, max_size=4), st.data())
def test_a_valid_session_with_a_byte_changed_never_crashes_the_decoder(sequence, data):
    wire = bytearray(b"".join(packed for packed, _ in sequence))
    wire[data.draw(st.integers(0, len(wire) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(ProtocolError):
        Decoder().feed(bytes(wire))


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


@pytest.mark.parametrize(
    "wire",
    [
        pack_struct("!IBI", MAX_PAYLOAD + 1, Kind.DATA, 1),
        pack_struct("!IBI", 0, 0, 1),
        pack_struct("!IBI", 0, 11, 1),
        pack_struct("!IBI", 0, Kind.CLOSE, 0),
        pack_struct("!IBI", 2, Kind.OPEN, 0) + b"{}",
        pack_struct("!IBI", 2, Kind.HELLO, 1) + b"{}",
        pack_struct("!IBI", 1, Kind.CLOSE, 1) + b"x",
        pack_struct("!IBI", 1, Kind.DATA, 1) + b"\1",
        pack_struct("!IBI", 2, Kind.DATA, 1) + b"\3x",
        pack_struct("!IBI", CHUNK + 2, Kind.DATA, 1) + b"\1" * (CHUNK + 2),
        pack_struct("!IBI", 0, Kind.EOF, 1),
        pack_struct("!IBI", 1, Kind.EOF, 1) + b"\3",
        pack_struct("!IBIBI", 5, Kind.CREDIT, 1, 1, 0),
        pack_struct("!IBIBI", 5, Kind.CREDIT, 1, 1, MAX_WINDOW + 1),
        pack_struct("!IBIBI", 5, Kind.CREDIT, 1, 3, 1),
        pack_struct("!IBI", 4, Kind.CREDIT, 1) + b"1234",
    ],
)
def test_frames_of_the_wrong_shape_are_refused(wire):
    with pytest.raises(ProtocolError):
        Decoder().feed(wire)


def test_an_oversized_frame_is_refused_before_it_has_come():
    decoder = Decoder()
    with pytest.raises(ProtocolError, match="more than"):
        decoder.feed(pack_struct("!IBI", 0xFFFFFFFF, Kind.DATA, 1))
