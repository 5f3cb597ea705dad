"""A stream's header lists and data as HTTP/1.1 text, and back. Pure.

What a stream carries is judged in one form only, and this is the way into it: each field is checked before a byte is
written, so that no value can become a line, and no line a second message.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TypeAlias

import msgspec
from hpack import HeaderTuple, NeverIndexedHeaderTuple

from ._http1 import (
    MAX_FIELDS,
    BadMessage,
    Body,
    Fields,
    Request,
    Response,
    chunk,
    head_end,
    last_chunk,
    read_request,
    read_response,
)

_NAME = re.compile(rb"[!#$%&'*+\-.^_`|~0-9a-z]+")
_VALUE = re.compile(rb"(?:[\x21-\x7e\x80-\xff](?:[\t\x20-\x7e\x80-\xff]*[\x21-\x7e\x80-\xff])?)?")
_METHOD = re.compile(rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]{1,32}")
_VISIBLE = re.compile(rb"[\x21-\x7e]+")
_STATUS = re.compile(rb"[1-5][0-9]{2}")
_LENGTH = re.compile(rb"[0-9]{1,18}")
_OF_A_CONNECTION = frozenset(
    {b"connection", b"keep-alive", b"proxy-connection", b"transfer-encoding", b"upgrade", b"http2-settings"}
)
_OURS = b"paddock-refusal"
"""No server speaks for the gateway."""
_BODILESS = frozenset({b"204", b"304"})


class NoTunnel(BadMessage):
    """CONNECT on a stream, or a protocol in it."""


def is_grpc(fields: Iterable[tuple[bytes, bytes]]) -> bool:
    """Whether trailers are part of what is meant."""
    return any(
        name.lower() == b"content-type" and value.lower().startswith(b"application/grpc") for name, value in fields
    )


class Text:
    """One message as it comes on a stream: `head`, then `data`, then `end`; each gives its text. BadMessage."""

    def __init__(self) -> None:
        self._left: int | None = None
        self._chunked = False

    def request(self, fields: Iterable[tuple[bytes, bytes]], scheme: bytes, *, ended: bool) -> bytes:
        pseudo, rest = _read(fields)
        method = pseudo.pop(b":method", b"")
        if method == b"CONNECT" or b":protocol" in pseudo:
            raise NoTunnel("HTTP/2 carries no tunnels and no WebSocket here")
        authority, path = pseudo.pop(b":authority", None), pseudo.pop(b":path", b"")
        if not _METHOD.fullmatch(method):
            raise BadMessage("no method, or none that is one")
        if pseudo.pop(b":scheme", None) != scheme:
            raise BadMessage(f"a :scheme that is not {scheme.decode()}")
        if pseudo:
            raise BadMessage("a pseudo-field that no request has")
        if not _VISIBLE.fullmatch(path) or not (path.startswith(b"/") or (path == b"*" and method == b"OPTIONS")):
            raise BadMessage("a :path that is neither absolute nor the * of OPTIONS")
        host = _host(authority, rest)
        begin = b"%b %b HTTP/1.1\r\nHost: %b\r\n" % (method, path, host)
        return begin + self._rest(rest, ended=ended, none=ended, keep_length=False)

    def response(self, fields: Iterable[tuple[bytes, bytes]], method: str, *, ended: bool) -> bytes:
        pseudo, rest = _read(fields)
        status = pseudo.pop(b":status", b"")
        if not _STATUS.fullmatch(status) or status == b"101" or pseudo:
            raise BadMessage("no :status, one that is none, or another pseudo-field")
        begin = b"HTTP/1.1 %b \r\n" % status
        if status < b"200":
            if ended:
                raise BadMessage("an interim answer that is the last")
            return begin + _lines(_without_length(rest)) + b"\r\n"
        none = method == "HEAD" or status in _BODILESS
        rest = [field for field in rest if field[0] != _OURS]
        return begin + self._rest(rest, ended=ended, none=none, keep_length=none)

    def data(self, data: bytes) -> bytes:
        if self._chunked:
            return chunk(data) if data else b""
        if self._left is None or len(data) > self._left:
            raise BadMessage("more content than was said")
        self._left -= len(data)
        return data

    def end(self, trailers: Iterable[tuple[bytes, bytes]] = ()) -> bytes:
        pseudo, rest = _read(trailers)
        if pseudo:
            raise BadMessage("a pseudo-field in trailers")
        if self._left:
            raise BadMessage("less content than was said")
        if not self._chunked:
            return b""
        self._chunked = False
        return last_chunk(rest)

    def _rest(self, fields: Fields, *, ended: bool, none: bool, keep_length: bool) -> bytes:
        """The fields and the framing. `none`: there is no body; `keep_length`: and its length is about another."""
        length = _length(fields)
        fields_out = _lines(_without_length(fields))
        self._left = 0
        if none and keep_length:
            framing = b"" if length is None else b"Content-Length: %d\r\n" % length
        elif ended:
            if length:
                raise BadMessage("a length, and no content")
            if not none and length is None:  # without one that it did not say
                return fields_out + b"Transfer-Encoding: chunked\r\nConnection: close\r\n\r\n" + last_chunk([])
            framing = b"" if length is None else b"Content-Length: 0\r\n"
        elif length is None or is_grpc(fields) or any(name == b"trailer" for name, _ in fields):
            self._chunked, framing = True, b"Transfer-Encoding: chunked\r\n"
        else:
            self._left, framing = length, b"Content-Length: %d\r\n" % length
        return fields_out + framing + b"Connection: close\r\n\r\n"


def _read(fields: Iterable[tuple[bytes, bytes]]) -> tuple[dict[bytes, bytes], Fields]:
    """Pseudo-fields, and the others with the crumbs of cookies joined."""
    pseudo: dict[bytes, bytes] = {}
    rest: Fields = []
    cookies: list[bytes] = []
    for name, value in fields:
        if _VALUE.fullmatch(value) is None:
            raise BadMessage("a field's value with control characters, or spaces around it")
        if name.startswith(b":"):
            if rest or cookies or name in pseudo:
                raise BadMessage("a pseudo-field twice, or after other fields")
            pseudo[name] = value
        elif _NAME.fullmatch(name) is None:
            raise BadMessage("a field's name that is none in HTTP/2")
        elif name in _OF_A_CONNECTION or (name == b"te" and value.lower() != b"trailers"):
            raise BadMessage(f"the field {name.decode()}, which HTTP/2 does not have")
        elif name == b"cookie":
            cookies.append(value)
        else:
            rest.append((name, value))
    if cookies:
        rest.append((b"cookie", b"; ".join(cookies)))
    if len(rest) > MAX_FIELDS:
        raise BadMessage(f"more than {MAX_FIELDS} header fields")
    return pseudo, rest


def _host(authority: bytes | None, rest: Fields) -> bytes:
    """Taken out of the fields, where it is too. BadMessage: none, or two."""
    named = [value for name, value in rest if name == b"host"]
    rest[:] = [field for field in rest if field[0] != b"host"]
    if authority is not None:
        named.append(authority)
    if not named or any(one != named[0] for one in named) or not _VISIBLE.fullmatch(named[0]):
        raise BadMessage("no :authority, or a Host that is another")
    return named[0]


def _length(fields: Fields) -> int | None:
    lengths = [value for name, value in fields if name == b"content-length"]
    if not lengths:
        return None
    if len(lengths) > 1 or not _LENGTH.fullmatch(lengths[0]):
        raise BadMessage("two lengths, or one that is no number")
    return int(lengths[0])


def _without_length(fields: Fields) -> Fields:
    return [field for field in fields if field[0] != b"content-length"]


def _lines(fields: Fields) -> bytes:
    return b"".join([b"%b: %b\r\n" % field for field in fields])


class Head(msgspec.Struct, frozen=True):
    """A header list to send; `ended`: nothing follows. `trailers`: it comes after the content, and may be empty."""

    fields: list[tuple[bytes, bytes]]
    ended: bool
    trailers: bool = False


Piece: TypeAlias = Head | bytes


class Pieces:
    """Text that one of us wrote, in pieces, as what a stream sends: heads and data; the last one ends it."""

    def __init__(self, *, answers: str | None, scheme: bytes = b"https") -> None:
        """`answers`: the method of the request that the text is the response to; None: it is a request itself."""
        self._answers, self._scheme = answers, scheme
        self._text = bytearray()
        self._body: Body | None = None
        self.done = False
        """All of the message was given."""

    def feed(self, data: bytes | bytearray | memoryview) -> list[Piece]:
        """BadMessage: never, of what we write."""
        if self.done:
            return []
        self._text += data
        pieces: list[Piece] = []
        while self._body is None:
            end = head_end(self._text)
            if end < 0:
                return pieces
            head = bytes(self._text[:end])
            del self._text[:end]
            pieces.append(self._begin(head))
        if not self.done:
            content = self._body.take(self._text)
            if content:
                pieces.append(content)
            if self._body.done:
                self.done = True
                pieces.append(Head([(n.lower(), v) for n, v in self._body.trailers], ended=True, trailers=True))
        return _joined(pieces)

    def end(self) -> list[Piece]:
        """Nothing more is written. BadMessage: it was not all."""
        if self.done:
            return []
        if self._body is None:
            raise BadMessage("no head")
        self._body.end()
        self.done = True
        return [Head([], ended=True, trailers=True)]

    def _begin(self, head: bytes) -> Head:
        if self._answers is None:
            request = read_request(head)
            return self._start(request, _of_request(request, self._scheme))
        response = read_response(head, self._answers)
        fields: list[tuple[bytes, bytes]] = [(b":status", b"%d" % response.status)]
        fields += [(name.lower(), value) for name, value in response.fields]
        if response.status < 200:
            return Head(fields, ended=False)
        return self._start(response, fields)

    def _start(self, message: Request | Response, fields: list[tuple[bytes, bytes]]) -> Head:
        if message.length is not None:
            fields.append((b"content-length", b"%d" % message.length))
        self._body = Body(message, to_the_end=isinstance(message, Response))
        self.done = self._body.done
        return Head(fields, ended=self.done)


def _joined(pieces: list[Piece]) -> list[Piece]:
    """A head that is followed by an end alone is the end."""
    if len(pieces) >= 2:
        head, end = pieces[-2:]
        if isinstance(head, Head) and isinstance(end, Head) and end.trailers and not end.fields:
            return [*pieces[:-2], Head(head.fields, ended=True)]
    return pieces


def _of_request(request: Request, scheme: bytes) -> list[tuple[bytes, bytes]]:
    """Nothing but the pseudo-fields stays in the table of the other side: a secret in there could be guessed at, by the
    length of what is sent next."""
    fields: list[tuple[bytes, bytes]] = [
        HeaderTuple(b":method", request.method.encode()),
        HeaderTuple(b":scheme", scheme),
        HeaderTuple(b":authority", (request.host or "").encode("latin-1")),
        NeverIndexedHeaderTuple(b":path", request.target.encode()),
    ]
    fields += [NeverIndexedHeaderTuple(name.lower(), value) for name, value in request.fields]
    fields.append(HeaderTuple(b"te", b"trailers"))
    return fields
