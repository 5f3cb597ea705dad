"""What is passed on is what was authorized: one reading of every message, or none."""

from __future__ import annotations

import h11
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paddock.gateway.protocols.http1 import (
    MAX_HEAD_BYTES,
    BadMessage,
    Body,
    Request,
    Response,
    chunk,
    head_end,
    last_chunk,
    read_request,
    read_response,
    write_request,
    write_response,
)


def request(*lines: str) -> Request:
    return read_request("\r\n".join([*lines, "", ""]).encode("latin-1"))


def test_a_request_is_written_anew_from_what_was_read() -> None:
    read = request(
        "POST /a?b=c HTTP/1.1",
        "hOST: api.example.com",
        "Accept:  */* ",
        "Connection: keep-alive, X-Private",
        "X-Private: 1",
        "Proxy-Authorization: Basic abc",
        "TE: trailers",
        "Content-Length: 5",
    )
    assert (read.method, read.target, read.host, read.length, read.chunked) == (
        "POST",
        "/a?b=c",
        "api.example.com",
        5,
        False,
    )
    assert bytes(write_request(read, "/a?b=c", "api.example.com")) == (
        b"POST /a?b=c HTTP/1.1\r\nHost: api.example.com\r\nAccept: */*\r\nContent-Length: 5\r\n\r\n"
    )


@pytest.mark.parametrize(
    "lines",
    [
        ("Content-Length: 5", "Transfer-Encoding: chunked"),
        ("Content-Length: 5", "Content-Length: 5"),
        ("Content-Length: 5, 5",),
        ("Content-Length: +5",),
        ("Content-Length: 5 5",),
        ("Content-Length:",),
        ("Content-Length: 0x5",),
        ("Transfer-Encoding: chunked", "Transfer-Encoding: chunked"),
        ("Transfer-Encoding: gzip, chunked",),
        ("Transfer-Encoding: identity",),
        ("Transfer-Encoding: \x0bchunked",),
        ("Transfer-Encoding : chunked",),
        ("X: a", " folded"),
        ("X: a\x00b",),
        ("X: a\x7fb",),
        ("X: a\rb",),
        ("X: a\nHost: other",),
        (": no name",),
        ("no colon",),
        ("X Y: a",),
        ("Host: other.example.com",),
        ("Connection: Host",),
        ("Connection: close, content-length", "Content-Length: 3"),
        ("Connection: content-encoding", "Content-Encoding: gzip"),
        ("Expect: the-worst",),
        *[tuple(f"X-{number}: 1" for number in range(300))],
    ],
)
def test_smuggling_is_refused(lines: tuple[str, ...]) -> None:
    with pytest.raises(BadMessage):
        request("POST / HTTP/1.1", "Host: api.example.com", *lines)


@pytest.mark.parametrize(
    "line",
    [
        "GET /",
        "GET  / HTTP/1.1",
        "GET / HTTP/2.0",
        "GET / HTTP/1.1 ",
        " GET / HTTP/1.1",
        "G\tT / HTTP/1.1",
        "GET /\xa0 HTTP/1.1",
        "GET /a b HTTP/1.1",
        "GET / http/1.1",
        "",
        "GET /\x7f HTTP/1.1",
        "PRI * HTTP/2.0",
    ],
)
def test_malformed_request_lines_are_refused(line: str) -> None:
    with pytest.raises(BadMessage):
        request(line, "Host: a")


def test_a_request_has_a_host() -> None:
    with pytest.raises(BadMessage, match="Host"):
        request("GET / HTTP/1.1")
    assert request("GET / HTTP/1.0").host is None


def test_lines_that_end_otherwise_are_refused_at_once() -> None:
    with pytest.raises(BadMessage):
        head_end(bytearray(b"GET / HTTP/1.1\nHost: a\n\n"))
    assert head_end(bytearray(b"GET / HTTP/1.1\r")) == -1
    with pytest.raises(BadMessage):
        head_end(bytearray(b"GET / HTTP/1.1\r\nX: " + b"a" * MAX_HEAD_BYTES))


def test_lives_of_connections() -> None:
    assert request("GET / HTTP/1.1", "Host: a").keep_alive
    assert not request("GET / HTTP/1.1", "Host: a", "Connection: Close").keep_alive
    assert not request("GET / HTTP/1.0", "Host: a").keep_alive
    assert request("GET / HTTP/1.0", "Host: a", "Connection: keep-alive").keep_alive
    assert request("GET / HTTP/1.1", "Host: a", "Upgrade: websocket").upgrade is None
    assert request("GET / HTTP/1.1", "Host: a", "Upgrade: h2c", "Connection: upgrade").upgrade is None
    assert request("GET / HTTP/1.1", "Host: a", "Upgrade: WebSocket", "Connection: upgrade").upgrade == b"websocket"


def response(method: str, *lines: str) -> tuple[bytes, bool]:
    read = read_response("\r\n".join([*lines, "", ""]).encode("latin-1"), method)
    return bytes(write_response(read, keep_alive=True)), read.keep_alive


def test_responses_are_written_anew() -> None:
    assert response("GET", "HTTP/1.1 200 OK", "Connection: close", "Server: x", "Content-Length: 3") == (
        b"HTTP/1.1 200 OK\r\nServer: x\r\nContent-Length: 3\r\n\r\n",
        False,
    )
    assert (
        response("HEAD", "HTTP/1.1 200 OK", "Content-Length: 3")[0] == b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\n"
    )
    assert response("GET", "HTTP/1.1 204 No", "Content-Length: 0")[0] == b"HTTP/1.1 204 No\r\n\r\n"
    assert response("GET", "HTTP/1.1 304", "ETag: a")[0] == b"HTTP/1.1 304 \r\nETag: a\r\n\r\n"
    assert response("GET", "HTTP/1.1 200 OK", "Transfer-Encoding: Chunked")[0].endswith(
        b"\r\nTransfer-Encoding: chunked\r\n\r\n"
    )


@pytest.mark.parametrize(
    "lines", [("Content-Length: 1", "Transfer-Encoding: chunked"), ("Content-Length: 1", "Content-Length: 2")]
)
def test_responses_of_two_lengths_are_refused(lines: tuple[str, ...]) -> None:
    with pytest.raises(BadMessage):
        response("GET", "HTTP/1.1 200 OK", *lines)


def bodies(head: Request | Response, data: bytes, sizes: list[int]) -> tuple[bytes, bytes, Body]:
    """The content read from pieces of `data`, and what is left of it."""
    body, buffer, content, at = Body(head), bytearray(), b"", 0
    for size in [*sizes, len(data)]:
        buffer += data[at : at + size]
        at += size
        content += body.take(buffer)
    return content, bytes(buffer), body


CHUNKED = request("POST / HTTP/1.1", "Host: a", "Transfer-Encoding: chunked")


@given(st.lists(st.binary(min_size=1, max_size=50), max_size=6), st.lists(st.integers(0, 30), max_size=30))
def test_chunks_cut_anywhere(pieces: list[bytes], sizes: list[int]) -> None:
    data = (
        b"".join(map(chunk, pieces))
        + last_chunk([(b"X-Sum", b"1"), (b"Host", b"evil"), (b"X_Original_URL", b"/")])
        + b"next"
    )
    content, left, body = bodies(CHUNKED, data, sizes)
    assert (content, left, body.done, body.trailers) == (b"".join(pieces), b"next", True, [(b"X-Sum", b"1")])


@given(st.binary(max_size=50), st.lists(st.integers(0, 30), max_size=30))
def test_lengths_cut_anywhere(content: bytes, sizes: list[int]) -> None:
    head = request("POST / HTTP/1.1", "Host: a", f"Content-Length: {len(content)}")
    read, left, body = bodies(head, content + b"next", sizes)
    assert (read, left, body.done) == (content, b"next", True)


@pytest.mark.parametrize(
    "data",
    [
        b"3;x=y\r\nabc\r\n0\r\n\r\n",
        b"3 \nabc",
        b"0x3\r\nabc\r\n",
        b"-3\r\n",
        b"3\r\nabcd\r\n",
        b"\r\n",
        b"1" * 16 + b"\r\n",
        b"3\nabc\n",
        b"0\r\nX : 1\r\n\r\n",
        b"0\r\nX: 1\n\r\n",
        b"a" * 5000,
    ],
)
def test_malformed_chunks_are_refused(data: bytes) -> None:
    with pytest.raises(BadMessage):
        bodies(CHUNKED, data, [])


def test_extensions_of_an_upstream_are_left_out() -> None:
    head = read_response(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", "GET")
    content, _, body = bodies(head, b'3;x="y"\r\nabc\r\n0\r\n\r\n', [])
    assert (content, body.done) == (b"abc", True)


def test_a_body_that_is_cut_short_is_no_body() -> None:
    head = request("POST / HTTP/1.1", "Host: a", "Content-Length: 9")
    for short in (bodies(head, b"abc", []), bodies(CHUNKED, b"3\r\nab", [])):
        with pytest.raises(BadMessage):
            short[2].end()


PIECES = st.sampled_from(
    [
        b"GET",
        b"POST",
        b" ",
        b"/",
        b"*",
        b"HTTP/1.1",
        b"HTTP/1.0",
        b"\r\n",
        b"\n",
        b"\r",
        b"Host",
        b": ",
        b":",
        b"a",
        b"\t",
        b"Content-Length: 3",
        b"Transfer-Encoding: chunked",
        b"chunked",
        b"Connection: close",
        b"\x00",
        b"\x80",
        b",",
        b"abc",
    ]
)
LINES = st.lists(PIECES, max_size=12).map(b"".join)


@given(LINES, st.sampled_from([b"", b"POST / HTTP/1.1\r\nHost: a\r\n", b"GET / HTTP/1.0\r\n"]))
def test_whatever_is_read_is_read_the_same_by_another_reader(tail: bytes, start: bytes) -> None:
    """What is taken is written so that a second implementation finds one request in it: ours."""
    data = bytearray(start + tail + b"\r\n\r\n")
    try:
        head = read_request(bytes(data[: head_end(data)]))
        written = bytes(write_request(head, "/", "a"))
    except BadMessage:
        return
    oracle = h11.Connection(h11.SERVER)
    oracle.receive_data(written)
    seen = oracle.next_event()
    assert isinstance(seen, h11.Request)
    assert seen.method == head.method.encode()
    assert [value for name, value in seen.headers if name == b"host"] == [b"a"]
    lengths = [name for name, _ in seen.headers if name in (b"content-length", b"transfer-encoding")]
    assert len(lengths) <= 1
    assert (b"transfer-encoding" in lengths) == head.chunked


def test_many_small_chunks_are_taken_in_turns() -> None:
    request = read_request(b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n")
    turns, buffer = list[None](), bytearray(b"1\r\nx\r\n" * 1000 + b"0\r\n\r\n")
    body, pieces = Body(request, on_turn=lambda: turns.append(None)), list[bytes]()
    while not body.done:
        pieces.append(body.take(buffer))
    assert ([len(piece) for piece in pieces], len(turns)) == ([256, 256, 256, 232], 3)
    assert not buffer
