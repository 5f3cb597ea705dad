"""A stream's header lists as messages, and back. Pure.

The fields of a list are checked as those of HTTP/1.1 are, and what a stream carries is authorized in the same form.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from hpack import HeaderTuple, NeverIndexedHeaderTuple

from .http1 import MAX_FIELDS, BadMessage, Fields, Request, Response, request_of, response_of, trailers_of
from .refusal import Refused

_NAME = re.compile(rb"[!#$%&'*+\-.^_`|~0-9a-z]+")
_VALUE = re.compile(rb"(?:[\x21-\x7e\x80-\xff](?:[\t\x20-\x7e\x80-\xff]*[\x21-\x7e\x80-\xff])?)?")
_METHOD = re.compile(rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]{1,32}")
_VISIBLE = re.compile(rb"[\x21-\x7e]+")
_STATUS = re.compile(rb"[1-5][0-9]{2}")
_OF_A_CONNECTION = frozenset(
    {b"connection", b"keep-alive", b"proxy-connection", b"transfer-encoding", b"upgrade", b"http2-settings"}
)
_OURS = b"paddock-refusal"
"""No server speaks for the gateway."""


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
    response = response_of(int(status), [field for field in rest if field[0] != _OURS], method)
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
    """Taken out of the fields, where it is too. BadMessage: none, or two."""
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
