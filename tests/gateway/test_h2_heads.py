"""Header lists become one message that says the same, or none at all."""

from __future__ import annotations

import h2.connection
import pytest
from h2.config import H2Configuration
from h2.events import RequestReceived
from hypothesis import given, settings
from hypothesis import strategies as st

from paddock.gateway.protocols import http1
from paddock.gateway.protocols.http1 import BadMessage, write_request
from paddock.gateway.protocols.http2 import (
    BURST,
    PREFACE,
    Flood,
    Frames,
    read_request,
    read_response,
    read_trailers,
    request_fields,
    response_fields,
)
from paddock.gateway.protocols.refusal import Refused, refusal_fields

Fields = list[tuple[bytes, bytes]]
PSEUDO: Fields = [(b":method", b"POST"), (b":scheme", b"https"), (b":authority", b"a.test"), (b":path", b"/a?b=c")]


def without(name: bytes) -> Fields:
    return [field for field in PSEUDO if field[0] != name]


def with_(name: bytes, value: bytes) -> Fields:
    return [(n, value if n == name else v) for n, v in PSEUDO]


@pytest.mark.parametrize(
    "fields",
    [
        without(b":method"),
        without(b":scheme"),
        without(b":authority"),
        without(b":path"),
        [*PSEUDO, (b":path", b"/b")],
        [*PSEUDO, (b":status", b"200")],
        [(b"a", b"b"), *PSEUDO],
        with_(b":scheme", b"http"),
        with_(b":path", b"a"),
        with_(b":path", b"*"),
        with_(b":path", b""),
        with_(b":path", b"/a HTTP/1.1\r\nHost: evil.test\r\n\r\nGET /"),
        with_(b":path", b"https://evil.test/"),
        with_(b":path", b"/a b"),
        with_(b":path", b"/\xc3\xa4"),
        with_(b":method", b"GET /evil"),
        with_(b":method", b"GET\r\n"),
        with_(b":authority", b"a.test\r\nX: y"),
        with_(b":authority", b"a.test b.test"),
        [*PSEUDO, (b"host", b"b.test")],
        [*without(b":authority"), (b"host", b"a.test"), (b"host", b"b.test")],
        [*PSEUDO, (b"x", b"1\r\nHost: evil.test")],
        [*PSEUDO, (b"x", b"1\nY: z")],
        [*PSEUDO, (b"x", b"1\0")],
        [*PSEUDO, (b"x", b" 1")],
        [*PSEUDO, (b"x\r\ny", b"1")],
        [*PSEUDO, (b"x: y\r\nz", b"1")],
        [*PSEUDO, (b"X", b"1")],
        [*PSEUDO, (b"", b"1")],
        [*PSEUDO, (b"transfer-encoding", b"chunked")],
        [*PSEUDO, (b"connection", b"close")],
        [*PSEUDO, (b"upgrade", b"h2c")],
        [*PSEUDO, (b"te", b"gzip")],
        [*PSEUDO, (b"content-length", b"5"), (b"content-length", b"6")],
        [*PSEUDO, (b"content-length", b"5, 6")],
        [*PSEUDO, (b"content-length", b"+5")],
        [*PSEUDO, *((b"x", b"1") for _ in range(201))],
        [*PSEUDO, (b"authorization", b"a"), (b"authorization", b"b")],
        [*PSEUDO, (b"expect", b"something")],
    ],
)
def test_what_an_honest_client_never_sends_is_no_request(fields: Fields) -> None:
    with pytest.raises(BadMessage):
        read_request(fields, b"https", ended=False)


@pytest.mark.parametrize(
    "fields",
    [
        [(b":method", b"CONNECT"), (b":authority", b"a.test:443")],
        [*with_(b":method", b"CONNECT"), (b":protocol", b"websocket")],
    ],
)
def test_tunnels_are_said_to_be_refused(fields: Fields) -> None:
    with pytest.raises(Refused) as refused:
        read_request(fields, b"https", ended=False)
    assert refused.value.status == 501


def test_what_has_a_length_has_content() -> None:
    with pytest.raises(BadMessage, match="no content"):
        read_request([*PSEUDO, (b"content-length", b"5")], b"https", ended=True)


NAMES = st.from_regex(rb"\A[a-z0-9-]{1,12}\Z").filter(
    lambda name: (
        name
        not in (
            b"host",
            b"te",
            b"connection",
            b"upgrade",
            b"trailer",
            b"cookie",
            b"expect",
            b"content-length",
            b"keep-alive",
        )
    )
)
VALUES = st.from_regex(rb"\A([\x21-\x7e\x80-\xff]([\t\x20-\x7e\x80-\xff]{0,20}[\x21-\x7e])?)?\Z")
LISTS = st.lists(st.tuples(NAMES, VALUES), max_size=8)


@given(LISTS, st.none() | st.integers(0, 10**17), st.booleans())
@settings(deadline=None)
def test_there_and_back(fields: Fields, length: int | None, ended: bool) -> None:
    """What comes as a header list goes out as the same one, and HTTP/1.1 reads it as one message."""
    said = [] if length is None else [(b"content-length", b"%d" % length)]
    read = read_request([*PSEUDO, *fields, *said], b"https", ended=ended and not length)
    assert (read.method, read.target, read.host, read.keep_alive) == ("POST", "/a?b=c", "a.test", False)
    assert (read.fields, read.length, read.chunked) == (fields, length, length is None and not ended)
    sent = request_fields(read, read.target, "a.test")
    assert [tuple(one) for one in sent if one[0] != b"te"] == PSEUDO + fields + said
    text = bytes(write_request(read, read.target, "a.test"))
    again = http1.read_request(text)
    assert (again.fields, again.length, again.chunked) == (read.fields, read.length, read.chunked)
    assert text.count(b"\r\n\r\n") == 1


ODD = st.binary(max_size=12) | st.sampled_from([b"\r\n", b"a\r\nb: c", b"host", b"content-length", b"chunked", b"0"])


@given(st.lists(st.tuples(ODD | st.just(b"transfer-encoding"), ODD), max_size=6), st.booleans())
@settings(deadline=None)
def test_whatever_comes_is_one_message_or_none(fields: Fields, ended: bool) -> None:
    try:
        read = read_request([*PSEUDO, *fields], b"https", ended=ended)
    except BadMessage:
        return
    text = bytes(write_request(read, read.target, read.host or ""))
    assert text.index(b"\r\n\r\n") == len(text) - 4
    again = http1.read_request(text)
    assert (again.method, again.target, again.host) == ("POST", "/a?b=c", "a.test")


@given(LISTS, st.sampled_from(["GET", "HEAD", "POST"]), st.sampled_from([b"200", b"204", b"304", b"404"]))
@settings(deadline=None)
def test_answers_are_read_as_they_were_meant(fields: Fields, method: str, status: bytes) -> None:
    read = read_response([(b":status", status), *fields], method, ended=True)
    assert (read.status, read.fields, read.length) == (int(status), fields, None)
    assert response_fields(read) == [(b":status", status), *fields]


def test_the_length_of_an_answer_without_content_is_kept() -> None:
    said = [(b":status", b"200"), (b"content-length", b"7")]
    assert response_fields(read_response(said, "HEAD", ended=True)) == said


@pytest.mark.parametrize("status", [b"101", b"20", b"600", b"2000", b""])
def test_no_status_is_no_answer(status: bytes) -> None:
    with pytest.raises(BadMessage):
        read_response([(b":status", status)], "GET", ended=True)


def test_no_server_speaks_for_the_gateway() -> None:
    assert read_response([(b":status", b"403"), (b"paddock-refusal", b"1")], "GET", ended=True).fields == []


def test_trailers_say_nothing_that_belongs_before_a_body() -> None:
    assert read_trailers([(b"host", b"evil.test"), (b"grpc-status", b"0")]) == [(b"grpc-status", b"0")]
    with pytest.raises(BadMessage):
        read_trailers([(b":path", b"/")])


@given(st.text(max_size=60))
def test_a_grpc_message_is_printable(words: str) -> None:
    fields = dict(refusal_fields([(b":status", b"403"), (b"paddock-refusal", b"7")], words.encode()))
    assert fields[b"grpc-status"] == b"7"
    assert all(0x20 <= byte <= 0x7E for byte in fields[b"grpc-message"])


# -- frames ------------------------------------------------------------------------------------------------------------


def frame(kind: int, payload: bytes = b"", flags: int = 0, stream: int = 0) -> bytes:
    return len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + payload


@given(st.lists(st.integers(1, 30), max_size=30))
def test_frames_go_on_whole_and_goaway_does_not(cuts: list[int]) -> None:
    client = h2.connection.H2Connection(H2Configuration(client_side=True))
    client.initiate_connection()
    client.send_headers(1, PSEUDO)
    client.send_data(1, bytes(100), end_stream=True)
    data = (
        client.data_to_send() + frame(7, (3).to_bytes(4, "big") + (0).to_bytes(4, "big") + b"bye") + frame(6, bytes(8))
    )
    frames = Frames(lambda: 0.0, server=True)
    found: list[bytes | int] = []
    at = 0
    for cut in [*cuts, len(data)]:
        found += frames.feed(data[at : at + cut])
        at += cut
    assert [one for one in found if isinstance(one, int)] == [3]
    server = h2.connection.H2Connection(H2Configuration(client_side=False))
    server.initiate_connection()
    server.receive_data(PREFACE)
    events = server.receive_data(b"".join(one for one in found if isinstance(one, bytes)))
    assert [list(map(tuple, e.headers)) for e in events if isinstance(e, RequestReceived)] == [PSEUDO]


@pytest.mark.parametrize(
    "flood",
    [
        frame(6, bytes(8)),
        frame(4),
        frame(3, bytes(4), stream=1),
        frame(2, bytes(5), stream=1),
        frame(0, stream=1),
        frame(0xEE),
        frame(9, stream=1),
    ],
)
def test_frames_that_carry_nothing_are_counted(flood: bytes) -> None:
    now = [0.0]
    frames = Frames(lambda: now[0], server=False)
    for _ in range(int(BURST)):
        frames.feed(flood)
    with pytest.raises(Flood):
        frames.feed(flood)
    later = Frames(lambda: now[0], server=False)
    for _ in range(int(BURST) * 3):
        now[0] += 0.01
        later.feed(flood)


def test_a_header_block_has_an_end() -> None:
    frames = Frames(lambda: 0.0, server=False)
    frames.feed(frame(1, bytes(16 << 10), stream=1))
    with pytest.raises(Flood, match="header block"):
        frames.feed(4 * frame(9, bytes(16 << 10), stream=1))


def test_a_frame_has_a_bound() -> None:
    with pytest.raises(Flood, match="a frame of"):
        Frames(lambda: 0.0, server=False).feed((1 << 20).to_bytes(3, "big") + bytes(6))


def test_what_is_no_preface_is_refused_at_once() -> None:
    with pytest.raises(Flood, match="preface"):
        Frames(lambda: 0.0, server=True).feed(b"GET /")
