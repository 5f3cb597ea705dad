"""HTTP/1 messages: it parses and writes heads, and finds the ends of bodies.

The gateway writes each message anew from the parsed form, so no ambiguous bytes pass. It refuses messages that no
honest client sends, and doesn't repair them: both lengths, folded lines, control characters, two hosts.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import msgspec

from .refusal import BadMessage
from .replacer import Filter

MAX_HEAD_BYTES = 64 << 10
MAX_FIELDS = 200

_TOKEN = rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+"
_REQUEST = re.compile(rb"([!#$%&'*+\-.^_`|~0-9A-Za-z]{1,32}) ([\x21-\x7e]+) HTTP/1\.([01])")
_STATUS = re.compile(rb"HTTP/1\.([01]) ([1-5][0-9]{2})(?: ([\t\x20-\x7e\x80-\xff]*))?")
_FIELDS = re.compile(rb"(?:" + _TOKEN + rb":[\t\x20-\x7e\x80-\xff]*\r\n)*")
_LONE_NEWLINE = re.compile(rb"(?<!\r)\n")
_LENGTH = re.compile(rb"[0-9]{1,18}")

Fields = list[tuple[bytes, bytes]]

CONDITIONS = frozenset(
    {b"range", b"if-range", b"if-match", b"if-none-match", b"if-modified-since", b"if-unmodified-since"}
)
"""Fields that ask for a part of an answer, or for an answer only if it has changed or has not."""
_SINGLE = frozenset({b"host", b"content-length", b"transfer-encoding", b"authorization", b"expect", b"upgrade"})
_HOP = frozenset(
    {b"connection", b"keep-alive", b"proxy-connection", b"proxy-authenticate", b"proxy-authorization", b"te"}
    | {b"transfer-encoding", b"upgrade", b"content-length", b"http2-settings"}
)
_OURS = b"paddock-refusal"
"""No server speaks for the gateway."""
_LASTING = frozenset(
    {b"host", b"content-length", b"transfer-encoding", b"authorization", b"cookie", b"expect", b"content-encoding"}
)


class Head(msgspec.Struct, kw_only=True):
    """The common part of request and response heads.

    `fields` are end-to-end: without host, lengths, and hop-by-hop fields.

    `length` is the size of the body in bytes. None without `chunked`: a request has no body, and a response's body ends
    with the connection.
    """

    minor: int = 1
    fields: Fields
    length: int | None = None
    chunked: bool = False
    keep_alive: bool = True
    upgrade: bytes | None = None

    def get(self, name: bytes) -> bytes | None:
        """Return the first field of that name, given in lower case."""
        for found, value in self.fields:
            if found.lower() == name:
                return value
        return None


class Request(Head, kw_only=True):
    """A request head.

    `host` is the Host field as received. `expects`: the client waits for 100 before it sends its body.
    """

    method: str
    target: str
    host: str | None = None
    expects: bool = False


class Response(Head, kw_only=True):
    """A response head. `bodiless`: it has no body, and `length` describes that of another response."""

    status: int
    phrase: bytes
    bodiless: bool = False


def head_end(data: bytearray, start: int = 0) -> int:
    """Return where the head at the start of `data` ends, with its empty line, or -1 if the data is incomplete."""
    end = data.find(b"\r\n\r\n", start)
    if end >= 0:
        if end > MAX_HEAD_BYTES:
            raise BadMessage(f"a head of more than {MAX_HEAD_BYTES} bytes")
        return end + 4
    if _LONE_NEWLINE.search(data, 0, MAX_HEAD_BYTES):
        raise BadMessage("a line of the head ends without a carriage return")
    if len(data) > MAX_HEAD_BYTES:
        raise BadMessage(f"a head of more than {MAX_HEAD_BYTES} bytes")
    return -1


def read_request(head: bytes) -> Request:
    """Read a request's head, which ends with its empty line."""
    first, _, rest = head.partition(b"\r\n")
    match = _REQUEST.fullmatch(first)
    if match is None:
        raise BadMessage("the request line is not of the form: method, target, HTTP/1.1")
    method, target, minor = match.groups()
    return request_of(method.decode("ascii"), target.decode("ascii"), read_fields(rest), minor=minor[0] - 48)


def request_of(method: str, target: str, fields: Fields, *, minor: int = 1) -> Request:
    """Make a request from parsed values. Raises BadMessage if two readers could disagree about its fields."""
    known = _joined(fields)
    length, chunked = _framing(known, minor)
    connection = _tokens(known.get(b"connection", b""))
    expect = known.get(b"expect")
    if expect is not None and expect.lower() != b"100-continue":
        raise BadMessage("it expects something other than 100-continue")
    is_websocket = b"upgrade" in connection and known.get(b"upgrade", b"").lower() == b"websocket"
    host = known.get(b"host")
    if host is None and minor:
        raise BadMessage("no Host field")
    return Request(
        method=method,
        target=target,
        minor=minor,
        fields=_end_to_end(fields, connection, b"host"),
        host=None if host is None else host.decode("latin-1"),
        length=length,
        chunked=chunked,
        keep_alive=b"close" not in connection if minor else b"keep-alive" in connection,
        upgrade=b"websocket" if is_websocket else None,  # no server is asked for anything else (h2c)
        expects=expect is not None and minor > 0,
    )


def read_response(head: bytes, method: str) -> Response:
    """Read the response to a request with `method`, whose head `head` is."""
    first, _, rest = head.partition(b"\r\n")
    match = _STATUS.fullmatch(first)
    if match is None:
        raise BadMessage("the status line is not of the form: HTTP/1.1, number, phrase")
    minor, code, phrase = match.groups()
    return response_of(int(code), read_fields(rest), method, phrase=phrase or b"", minor=minor[0] - 48)


def response_of(status: int, fields: Fields, method: str, *, phrase: bytes = b"", minor: int = 1) -> Response:
    """Make a response to a request with `method` from parsed values. Raises BadMessage."""
    known = _joined(fields)
    length, chunked = _framing(known, minor)
    connection = _tokens(known.get(b"connection", b""))
    bodiless = method == "HEAD" or status < 200 or status in (204, 304)
    keep_alive = b"close" not in connection if minor else b"keep-alive" in connection
    return Response(
        status=status,
        phrase=phrase,
        bodiless=bodiless,
        minor=minor,
        fields=_end_to_end(fields, connection, _OURS),
        length=length,
        chunked=chunked,
        keep_alive=keep_alive and (bodiless or chunked or length is not None),
        upgrade=known[b"upgrade"].lower() if b"upgrade" in known and status == 101 else None,
    )


def write_request(request: Request, target: str, host: str) -> bytearray:
    """Write a request for an upstream: `target` in origin form, and the checked `host`."""
    head = bytearray(f"{request.method} {target} HTTP/1.1\r\nHost: {host}\r\n", "ascii")
    _write_fields(head, request.fields)
    if request.chunked:
        head += b"Transfer-Encoding: chunked\r\n"
    elif request.length is not None:
        head += b"Content-Length: %d\r\n" % request.length
    if request.upgrade is not None:
        head += b"Connection: Upgrade\r\nUpgrade: %b\r\n" % request.upgrade
    head += b"\r\n"
    return head


def write_response(response: Response, *, keep_alive: bool, minor: int = 1) -> bytearray:
    """Write a response for a client that speaks HTTP/1.`minor`."""
    head = bytearray(b"HTTP/1.1 %d %b\r\n" % (response.status, response.phrase))
    _write_fields(head, response.fields)
    if response.upgrade is not None:
        head += b"Connection: Upgrade\r\nUpgrade: %b\r\n\r\n" % response.upgrade
        return head
    if response.chunked and minor:
        head += b"Transfer-Encoding: chunked\r\n"
    elif response.length is not None and response.status >= 200 and response.status != 204:
        head += b"Content-Length: %d\r\n" % response.length
    if response.status >= 200:
        if not keep_alive:
            head += b"Connection: close\r\n"
        elif not minor:
            head += b"Connection: keep-alive\r\n"
    head += b"\r\n"
    return head


def _write_fields(head: bytearray, fields: Fields) -> None:
    for name, value in fields:
        head += name
        head += b": "
        head += value
        head += b"\r\n"


def read_fields(block: bytes) -> Fields:
    """Read fields in their order. `block` ends with its empty line."""
    if _FIELDS.fullmatch(block, 0, len(block) - 2) is None:
        raise BadMessage("a header field is malformed: folded, without a name, or with control characters")
    lines = block[:-4].split(b"\r\n") if len(block) > 2 else ()
    return [(name, value.strip(b" \t")) for name, _, value in (line.partition(b":") for line in lines)]


def _joined(fields: Fields) -> dict[bytes, bytes]:
    """Join fields by their names in lower case."""
    if len(fields) > MAX_FIELDS:
        raise BadMessage(f"more than {MAX_FIELDS} header fields")
    known: dict[bytes, bytes] = {}
    for name, value in fields:
        lower = name.lower()
        if lower in known:
            if lower in _SINGLE:
                raise BadMessage(f"the field {lower.decode()} twice")
            known[lower] += b"," + value
        else:
            known[lower] = value
    return known


def _framing(known: dict[bytes, bytes], minor: int) -> tuple[int | None, bool]:
    length, coding = known.get(b"content-length"), known.get(b"transfer-encoding")
    if coding is not None:
        if length is not None:
            raise BadMessage("both Content-Length and Transfer-Encoding")
        if coding.lower() != b"chunked":
            raise BadMessage("a Transfer-Encoding other than chunked")
        if not minor:
            raise BadMessage("Transfer-Encoding in HTTP/1.0")
        return None, True
    if length is None:
        return None, False
    if not _LENGTH.fullmatch(length):
        raise BadMessage("a Content-Length that is not a number")
    return int(length), False


def _tokens(value: bytes) -> frozenset[bytes]:
    """Return the tokens of a Connection field."""
    if not value:
        return frozenset()
    tokens = frozenset(token.strip(b" \t").lower() for token in value.split(b","))
    if tokens & _LASTING:
        raise BadMessage("Connection names a field that has to reach the other end")
    return tokens


def _end_to_end(fields: Fields, connection: frozenset[bytes], also: bytes) -> Fields:
    return [
        field
        for field in fields
        if (lower := field[0].lower()) not in _HOP and lower != also and lower not in connection
    ]


MAX_TRAILER_BYTES = 8 << 10
_TURN_CHUNKS = 256
_SIZE_LINE = 4096
_SIZE = re.compile(rb"([0-9A-Fa-f]{1,15})[ \t]*(;[\t\x20-\x7e\x80-\xff]*)?")
_NO_TRAILERS = frozenset(
    {b"host", b"content-length", b"transfer-encoding", b"connection", b"authorization", b"cookie", b"set-cookie"}
    | {b"content-encoding", b"content-type", b"upgrade", b"te", b"trailer"}
    | {b"x-http-method-override", b"x-http-method", b"x-method-override", b"x-original-url", b"x-rewrite-url"}
)


def trailers_of(fields: Fields) -> Fields:
    """Remove the fields that may not be in trailers."""
    if len(fields) > MAX_FIELDS:
        raise BadMessage(f"more than {MAX_FIELDS} header fields")
    return [field for field in fields if field[0].lower().replace(b"_", b"-") not in _NO_TRAILERS]


class Ending:
    """How far a stream of HTTP/2 has come: whether it has `ended`, and with which trailers."""

    def __init__(self) -> None:
        self.ended = False
        self.trailers: Fields = []


class Body:
    """Takes the content of one body from the front of a buffer, and filters it.

    A request's chunks have no extensions. A response's may have some, which it skips. `ending`: the whole buffer
    belongs to the body, until this object reports the end.
    """

    def __init__(
        self, head: Request | Response, ending: Ending | None = None, *, on_turn: Callable[[], None] | None = None
    ) -> None:
        """Begin a body. Without a length, a response's goes on to the end of the connection.

        `on_turn`: runs when `take` leaves chunks in the buffer, since many small ones take long.
        """
        self._on_turn = on_turn
        answers = isinstance(head, Response)
        none = (answers and head.bodiless) or (not answers and head.length is None)
        self._ending = ending
        self._chunked = head.chunked and not (answers and head.bodiless)
        self._left: int | None = 0 if none or head.chunked else head.length
        self._extensions, self._in_chunk = answers, False
        self.done = self._left == 0 and not self._chunked
        self.trailers: Fields = []
        self.begun = bytearray()
        """The part that a caller has taken and not passed on."""
        self.watch: Callable[[bytes], None] | None = None
        """Sees all that `take_filtered` returns before its filter does. It may raise."""
        self.filter: Filter | None = None
        self.lags = self._is_taken = False
        """`lags`: the filter has to finish with what it got before there is more."""
        self.filter_trailers: Callable[[Fields], Fields] = list

    @property
    def last(self) -> Fields | None:
        """Return the filtered trailers after the end of the body, or None before it."""
        return self.filter_trailers(self.trailers) if self.done else None

    def take_filtered(self, buffer: bytearray) -> bytes:
        """Take the content that can go on. Don't call it again when it is `done`."""
        data = b"" if self.lags else self.take(buffer)
        if self.begun:
            data = bytes(self.begun) + data
            self.begun.clear()
        if self.watch is not None:
            self.watch(data)
        if self.filter is not None:
            data = self.filter.feed(data) if data or self.lags else b""
            self.lags, self._is_taken = self.filter.lags, self._is_taken or self.done
            self.done = self._is_taken and not self.lags
            if self.done:
                data += self.filter.end()
        return data

    def take(self, buffer: bytearray) -> bytes:
        """Take the next bytes of content from the buffer. Empty: the data is incomplete, or the body is `done`."""
        if self.done:
            return b""
        if self._ending is not None:
            taken = bytes(buffer)
            buffer.clear()
            self.done, self.trailers = self._ending.ended, self._ending.trailers
            return taken
        if self._chunked:
            return self._take_chunks(buffer)
        if self._left is None:
            taken = bytes(buffer)
            buffer.clear()
            return taken
        taken = bytes(buffer) if len(buffer) <= self._left else bytes(memoryview(buffer)[: self._left])
        del buffer[: len(taken)]
        self._left -= len(taken)
        self.done = self._left == 0
        return taken

    def end(self) -> None:
        """Note that the connection has ended."""
        if self._left is None and not self._chunked and self._ending is None:
            self.done = True
        if not self.done:
            raise BadMessage("the connection ended within a body")

    def _take_chunks(self, buffer: bytearray) -> bytes:
        pieces: list[bytes] = []
        while not self.done:
            if self._on_turn is not None and len(pieces) >= _TURN_CHUNKS:
                self._on_turn()
                break
            if self._left:
                piece = bytes(memoryview(buffer)[: self._left])
                if not piece:
                    break
                del buffer[: len(piece)]
                self._left -= len(piece)
                pieces.append(piece)
            elif not self._begin_chunk(buffer):
                break
        return b"".join(pieces)

    def _begin_chunk(self, buffer: bytearray) -> bool:
        start = 2 if self._in_chunk else 0  # after the line break that ends the chunk before
        if not b"\r\n".startswith(bytes(buffer[:start])):
            raise BadMessage("a chunk is longer than it said")
        end = buffer.find(b"\n", start, start + _SIZE_LINE)
        if end < 0:
            if len(buffer) >= start + _SIZE_LINE:
                raise BadMessage("the size of a chunk has no end")
            return False
        match = _SIZE.fullmatch(buffer, start, end - 1) if buffer.startswith(b"\r", end - 1) else None
        if match is None:
            raise BadMessage("the size of a chunk is malformed")
        if match[2] and not self._extensions:
            raise BadMessage("a chunk with extensions")
        size = int(match[1], 16)
        if size:
            self._left, self._in_chunk = size, True
            del buffer[: end + 1]
            return True
        return self._end(buffer, end + 1)

    def _end(self, buffer: bytearray, start: int) -> bool:
        """Read the trailers after the last chunk, which ends at `start`."""
        if buffer.startswith(b"\r\n", start):
            del buffer[: start + 2]
        else:
            end = head_end(buffer, start)
            if end < 0:
                if len(buffer) - start > MAX_TRAILER_BYTES:
                    raise BadMessage(f"trailers of more than {MAX_TRAILER_BYTES} bytes")
                return False
            self.trailers = trailers_of(read_fields(bytes(buffer[start:end])))
            del buffer[:end]
        self.done = True
        return True


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def last_chunk(trailers: Fields) -> bytes:
    if not trailers:
        return b"0\r\n\r\n"
    return b"0\r\n" + b"".join(b"%b: %b\r\n" % field for field in trailers) + b"\r\n"
