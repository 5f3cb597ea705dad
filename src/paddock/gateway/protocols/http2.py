"""HTTP/2: it converts header lists to messages and back, and splits a stream of bytes into frames.

Pure.

It checks the fields of a list like the ones of HTTP/1.1, and gives the same messages for authorization. `Frames` sees
frames before the engine. It refuses floods, and removes GOAWAY, which the engine would take for the end of all streams.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

from hpack import HeaderTuple, NeverIndexedHeaderTuple

from .http1 import MAX_FIELDS, BadMessage, Fields, Request, Response, request_of, response_of, trailers_of
from .refusal import Refused
from .token_bucket import TokenBucket

_NAME = re.compile(rb"[!#$%&'*+\-.^_`|~0-9a-z]+")
_VALUE = re.compile(rb"(?:[\x21-\x7e\x80-\xff](?:[\t\x20-\x7e\x80-\xff]*[\x21-\x7e\x80-\xff])?)?")
_METHOD = re.compile(rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]{1,32}")
_VISIBLE = re.compile(rb"[\x21-\x7e]+")
_STATUS = re.compile(rb"[1-5][0-9]{2}")
_OF_A_CONNECTION = frozenset(
    {b"connection", b"keep-alive", b"proxy-connection", b"transfer-encoding", b"upgrade", b"http2-settings"}
)


def is_grpc(fields: Iterable[tuple[bytes, bytes]]) -> bool:
    """Tell whether trailers are part of the message."""
    return any(
        name.lower() == b"content-type" and value.lower().startswith(b"application/grpc") for name, value in fields
    )


def read_request(fields: Iterable[tuple[bytes, bytes]], scheme: bytes, *, ended: bool) -> Request:
    """Read a request. `ended`: nothing follows. Raise BadMessage, or Refused if HTTP/2 doesn't carry it here."""
    pseudo, rest = _read(fields)
    method = pseudo.pop(b":method", b"")
    if method == b"CONNECT" or b":protocol" in pseudo:
        reason = "HTTP/2 carries no tunnels and no WebSocket here"
        raise Refused(reason, status=501, rule="http", hint="use HTTP/1.1 for it")
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
    request = request_of(method.decode("ascii"), path.decode("ascii"), [(b"host", host), *rest])
    _frame(request, rest, ended=ended)
    return request


def read_response(fields: Iterable[tuple[bytes, bytes]], method: str, *, ended: bool) -> Response:
    """Read the answer to a request with `method`. BadMessage."""
    pseudo, rest = _read(fields)
    status = pseudo.pop(b":status", b"")
    if not _STATUS.fullmatch(status) or status == b"101" or pseudo:
        raise BadMessage("no :status, one that is none, or another pseudo-field")
    if status < b"200" and ended:
        raise BadMessage("an interim answer that is the last")
    response = response_of(int(status), rest, method)
    _frame(response, rest, ended=ended or response.bodiless)
    if response.status < 200:
        response.length = None
    return response


def read_trailers(fields: Iterable[tuple[bytes, bytes]]) -> Fields:
    pseudo, rest = _read(fields)
    if pseudo:
        raise BadMessage("a pseudo-field in trailers")
    return trailers_of(rest)


def _frame(message: Request | Response, fields: Fields, *, ended: bool) -> None:
    """Say how its body ends. `ended`: there is none."""
    message.keep_alive = False
    if not ended and (message.length is None or is_grpc(fields) or any(name == b"trailer" for name, _ in fields)):
        message.chunked, message.length = True, None
    elif ended and message.length and not (isinstance(message, Response) and message.bodiless):
        raise BadMessage("a length, and no content")


def _read(fields: Iterable[tuple[bytes, bytes]]) -> tuple[dict[bytes, bytes], Fields]:
    """Return the pseudo-fields, and the other fields with the parts of cookies joined."""
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
    """Remove the Host from the fields, and return it.

    Raises BadMessage without one, or if it differs from the authority.
    """
    named = [value for name, value in rest if name == b"host"]
    rest[:] = [field for field in rest if field[0] != b"host"]
    if authority is not None:
        named.append(authority)
    if not named or any(one != named[0] for one in named) or not _VISIBLE.fullmatch(named[0]):
        raise BadMessage("no :authority, or a Host that is another")
    return named[0]


def response_fields(response: Response) -> Fields:
    fields: Fields = [(b":status", b"%d" % response.status)]
    named = [(name.lower(), value.strip(b" \t")) for name, value in response.fields]
    fields += [field for field in named if field[0] not in _OF_A_CONNECTION]
    if response.length is not None and not response.chunked and response.status >= 200 and response.status != 204:
        fields.append((b"content-length", b"%d" % response.length))
    return fields


def request_fields(request: Request, target: str, host: str) -> Fields:
    """Return the fields of a request. Only pseudo-fields stay in the other side's table: an attacker could guess a
    secret in there by the length of the next message."""
    fields: list[tuple[bytes, bytes]] = [
        HeaderTuple(b":method", request.method.encode()),
        HeaderTuple(b":scheme", b"https"),
        HeaderTuple(b":authority", host.encode("latin-1")),
        NeverIndexedHeaderTuple(b":path", target.encode()),
    ]
    fields += [NeverIndexedHeaderTuple(name.lower(), value) for name, value in request.fields]
    if request.length is not None and not request.chunked:
        fields.append((b"content-length", b"%d" % request.length))
    fields.append(HeaderTuple(b"te", b"trailers"))
    return fields


# -- frames ----------------------------------------------------------------------------------------------------------

MAX_FRAME_BYTES = 16 << 10
MAX_BLOCK_BYTES = 64 << 10
BURST, PER_SECOND = 2000.0, 200.0
_EARNS_BYTES = 1 << 10
_FRAME_HEAD_BYTES = 9
_DATA, _HEADERS, _PUSH, _GOAWAY, _WINDOW, _CONTINUATION = 0, 1, 5, 7, 8, 9
_FREE = frozenset({_HEADERS, _WINDOW, _GOAWAY})
_END_STREAM, _END_HEADERS = 1, 4
_OPENING = frozenset({_HEADERS, _PUSH, _CONTINUATION})
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"


class Flood(Exception):
    """A peer sent more than any honest one does. `code` is the error code of HTTP/2."""

    def __init__(self, what: str, code: int) -> None:
        super().__init__(what)
        self.code = code


class Frames:
    """The frames of one direction. `server`: a client's preface comes first."""

    def __init__(self, clock: Callable[[], float], *, server: bool) -> None:
        self._free = TokenBucket(PER_SECOND, BURST, clock)
        self._held = bytearray()
        self._preface = PREFACE if server else b""
        self._block = 0

    def feed(self, data: bytes | bytearray) -> list[bytes | int]:
        """Return the complete frames, unchanged, but a number for a GOAWAY: streams above it were not begun.

        After Flood, the caller must not read on.
        """
        held = self._held
        held += data
        if self._preface and not self._skip_preface():
            return []
        at = start = 0
        found: list[bytes | int] = []
        while len(held) - at >= _FRAME_HEAD_BYTES:
            length, kind = int.from_bytes(held[at : at + 3], "big"), held[at + 3]
            if length > MAX_FRAME_BYTES:
                raise Flood(f"a frame of {length} bytes", 0x6)
            end = at + _FRAME_HEAD_BYTES + length
            if end > len(held):
                break
            self._weigh(kind, held[at + 4], length)
            if kind == _GOAWAY:
                if at > start:
                    found.append(bytes(held[start:at]))
                found.append(_goaway(held[at + _FRAME_HEAD_BYTES : end]))
                start = end
            at = end
        if at > start:
            found.append(bytes(held[start:at]))
        del held[:at]
        return found

    def _skip_preface(self) -> bool:
        """Skip the preface. Return whether all of it has come."""
        if not self._held.startswith(self._preface):
            if self._preface.startswith(self._held):
                return False
            raise Flood("no preface of HTTP/2", 0x1)
        del self._held[: len(self._preface)]
        self._preface = b""
        return True

    def _weigh(self, kind: int, flags: int, length: int) -> None:
        if kind in _OPENING:
            self._block = length + (self._block if kind == _CONTINUATION else 0)
            if self._block > MAX_BLOCK_BYTES:
                raise Flood(f"a header block of more than {MAX_BLOCK_BYTES} bytes", 0xB)
        if kind == _DATA and (length >= _EARNS_BYTES or flags & _END_STREAM):
            self._free.give()
        elif kind not in _FREE and not self._free.take():
            raise Flood("too many frames that carry nothing", 0xB)


def _goaway(payload: bytearray) -> int:
    if len(payload) < 8:
        raise Flood("a GOAWAY that is cut short", 0x6)
    return int.from_bytes(payload[:4], "big") & 0x7FFFFFFF
