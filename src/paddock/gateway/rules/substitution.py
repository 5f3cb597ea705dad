"""Placeholders become values where policy and binding agree, and nowhere else. Pure: heads and pieces of bodies.

`Misdirected` is both a refusal and a finding: a placeholder was on its way to where its secret must not go.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Callable
from urllib.parse import quote, quote_plus, unquote_plus

from paddock.gateway.protocols.gzip import TURN_BYTES, Gzip, Undecodable
from paddock.gateway.protocols.http1 import Fields
from paddock.gateway.protocols.refusal import Refused
from paddock.gateway.protocols.replacer import Replacer
from paddock.model import Binding

from .authorization import AuthorizedRequest
from .secrets import SecretBook, Unavailable

BUFFERED_BYTES = 1 << 20
"""Largest body that the gateway buffers to send its new length. It sends a larger one in chunks."""

_NEVER = frozenset({"TRACE", "TRACK", "CONNECT"})
_NOT_IN = frozenset({b"host", b"content-length", b"content-type", b"content-encoding", b"transfer-encoding"}) | {
    *(b"connection", b"upgrade", b"te", b"trailer", b"expect", b"range", b"forwarded", b"via")
}


# Fields that request a piece of an answer: redaction would miss a value in pieces.
_PIECES = frozenset({b"range", b"if-range", b"request-range", b"x-ms-range"})


class Misdirected(Refused):
    """A placeholder was where its value may not go."""

    def __init__(self, secret: str, place: str, reason: str) -> None:
        super().__init__(f"the placeholder of secret {secret} in {place}: {reason}", rule="secret")


class Substitution:
    """The substitution in one request: `target` and `fields` first, then `body` if it has one, and `trailers` last.

    All raise Misdirected and Unavailable. Then the caller must not send the rest.
    """

    def __init__(
        self, book: SecretBook, authorized: AuthorizedRequest, value: Callable[[str], bytes] | None = None
    ) -> None:
        """Prepare one request. `value` gives the replacement of a secret's placeholder, by default its value."""
        target, method = authorized.target, authorized.request.method
        self._book, self._value = book, value or book.value
        self._is_whole = book.is_bound_to(target)
        self._why = f"it may not be sent to {target.host}:{target.port} in this request"
        self._bindings: dict[str, tuple[Binding, ...]] = {}
        if authorized.scheme not in ("https", "wss"):
            self._why = "it is only sent encrypted"
        elif method in _NEVER:
            self._why = f"{method} sends back what it is sent"
        else:
            for name in authorized.verdict.secrets:
                if found := book.bindings(name, target, method):
                    self._bindings[name] = found
        places = [binding for found in self._bindings.values() for binding in found]
        self.headers = {binding.header.lower().encode() for binding in places if binding.header is not None}
        """Fields that may contain a value, in lower case."""
        if any(binding.basic for binding in places):
            self.headers.add(b"authorization")

    def target(self, target: str) -> str:
        """Substitute in path and query.

        A value only goes into the query parameters of a binding, with percent encoding.
        """
        if not self._book.find(target.encode()):
            return target
        path, mark, query = target.partition("?")
        self._bar(path.encode(), "the path", "values are not put into paths")
        pairs: list[str] = []
        for pair in query.split("&"):
            key, equals, value = pair.partition("=")
            self._bar(key.encode(), "the query", "it is the name of a parameter")
            parameter = unquote_plus(key)
            put = self._put(
                f"query parameter {parameter}",
                lambda b, p=parameter: b.query == p,
                lambda v: quote(v, safe="").encode(),
            )
            pairs.append(key + equals + self._book.needles.replaced(value.encode(), put).decode())
        return path + mark + "&".join(pairs)

    def fields(self, fields: Fields) -> Fields:
        """Substitute in the fields of the head. Omit requests for encodings that hide a value."""
        if not self._book:
            return fields
        swapped = [self._field(name, value) for name, value in fields]
        if self._is_whole:
            swapped = [field for field in swapped if field[0].lower().replace(b"_", b"-") not in _PIECES]
        return [(n, _readable(v) if n.lower() == b"accept-encoding" else v) for n, v in swapped]

    def trailers(self, fields: Fields) -> Fields:
        """Check that no trailer contains a placeholder."""
        for field in fields:
            self._bar(b": ".join(field), "a trailer", "values are not put there")
        return fields

    def body(self, fields: Fields) -> Body | None:
        """Return a filter for the body of a request with these fields, or None if it passes as it is."""
        if not self._book:
            return None
        kinds = {n.lower(): v.decode("latin-1").strip().lower() for n, v in fields}
        coding = kinds.get(b"content-encoding", "identity")
        bound = next((name for name, found in self._bindings.items() if any(one.body for one in found)), None)
        if coding in ("", "identity", "gzip", "x-gzip"):
            put = self._put("the body", lambda b: b.body, _encoder(kinds.get(b"content-type", "")))
            gzip = Gzip() if coding.endswith("gzip") else None
            return Body(Replacer(self._book.needles, put), gzip, rewrites=bound is not None)
        if bound is not None:
            raise Misdirected(bound, "the body", f"the body is encoded as {coding[:40]!r}, which cannot be looked into")
        return None

    def message(self, begin: bytes) -> Replacer:
        """Return a filter for a WebSocket's message with this beginning.

        It inserts secrets with a binding to bodies.
        """
        kind = "application/json" if begin.lstrip()[:1] in (b"{", b"[", b'"') else "text/plain"
        put = self._put("a message", lambda b: b.body, _encoder(kind, message=True))
        return Replacer(self._book.needles, put)

    def control(self, data: bytes) -> bytes:
        """Check that no control frame of a WebSocket contains a placeholder."""
        self._bar(data, "a control frame", "values are not put there")
        return data

    def _field(self, name: bytes, value: bytes) -> tuple[bytes, bytes]:
        lower = name.lower()
        shown = f"header {name.decode('latin-1')}"
        self._bar(name, shown, "it is the name of a header")
        if lower == b"authorization" and value[:6].lower() == b"basic ":
            return name, self._basic(value)
        if lower in _NOT_IN:
            self._bar(value, shown, "this header tells how the request is to be read")
        put = self._put(shown, lambda b: b.header is not None and b.header.lower().encode() == lower, _line)
        return name, self._book.needles.replaced(value, put)

    def _basic(self, value: bytes) -> bytes:
        scheme, encoded = value[:6], value[6:].strip()
        try:
            user, colon, password = base64.b64decode(encoded, validate=True).partition(b":")
        except binascii.Error:
            user, colon, password = b"", b"", b""
        self._bar(value + b" " + user, "header Authorization", "with Basic it is only put in as the password")
        if not self._book.find(password):
            return value
        put = self._put("the password of header Authorization", lambda b: b.basic, _line)
        return scheme + base64.b64encode(user + colon + self._book.needles.replaced(password, put))

    def _bar(self, data: bytes, place: str, reason: str) -> None:
        """Raise Misdirected if a placeholder is in there."""
        for name in self._book.find(data):
            raise Misdirected(name, place, reason)

    def _put(
        self, place: str, fits: Callable[[Binding], bool], encode: Callable[[bytes], bytes | None]
    ) -> Callable[[bytes], bytes]:
        def put(placeholder: bytes) -> bytes:
            name = self._book.name(placeholder)
            if name not in self._bindings:
                raise Misdirected(name, place, self._why)
            if not any(fits(binding) for binding in self._bindings[name]):
                raise Misdirected(name, place, "no binding of it names this place")
            encoded = encode(self._value(name))
            if encoded is None:
                raise Unavailable(f"secret {name} cannot be written into {place}")
            return encoded

        return put


class Body:
    """The body of one request in pieces. `rewrites`: its length may change, so the announced one is wrong."""

    def __init__(self, replacer: Replacer, gzip: Gzip | None, *, rewrites: bool) -> None:
        self._replacer, self._gzip, self.rewrites = replacer, gzip, rewrites
        self._unsearched = b""

    @property
    def lags(self) -> bool:
        return self._gzip is not None and self._gzip.lags

    def feed(self, data: bytes) -> bytes:
        if self._gzip is None:
            return self._replacer.feed(data)
        self._unsearched += data
        try:
            decoded = self._gzip.decode(data, TURN_BYTES)
        except Undecodable as error:
            return self._broken(error)
        swapped = self._replacer.feed(decoded)
        if self.rewrites:
            self._unsearched = b""
            return self._gzip.encode(swapped)
        return b"" if self.lags else self._searched()

    def end(self) -> bytes:
        """Return the rest of the body, for the caller to send."""
        rest = self._replacer.end()
        if self._gzip is None:
            return rest
        return self._gzip.encode(rest, last=True) if self.rewrites else b""

    def _searched(self) -> bytes:
        searched, self._unsearched = self._unsearched, b""
        return searched

    def _broken(self, error: Undecodable) -> bytes:
        if self.rewrites:
            raise Misdirected("(any)", "the body", f"its gzip cannot be read: {error}") from None
        self._gzip = None  # no server can read it either, and nothing would be put in
        return self._searched()


def _readable(value: bytes) -> bytes:
    """Keep the codings of a client that redaction can read."""
    offered = [one.strip() for one in value.lower().split(b",")]
    kept = [one for one in offered if one.split(b";")[0].strip() in (b"gzip", b"x-gzip", b"identity")]
    return b", ".join(kept) or b"identity"


def _line(value: bytes) -> bytes | None:
    """Return a value for a header, or None if it would end the header's line and begin the next one."""
    return None if any(byte < 0x20 or byte == 0x7F for byte in value) else value


def _encoder(kind: str, *, message: bool = False) -> Callable[[bytes], bytes | None]:
    """Return the function that writes a value into a body of this type. None accepts a value except JSON and forms."""
    main = kind.partition(";")[0].strip()
    if main.endswith(("/json", "+json", "/x-ndjson", "/jsonl")):
        return _json
    if main == "application/x-www-form-urlencoded":
        return lambda value: quote_plus(value).encode()
    return (lambda value: value) if message else (lambda _: None)


def _json(value: bytes) -> bytes | None:
    try:
        return json.dumps(value.decode())[1:-1].encode()
    except UnicodeDecodeError:
        return None
