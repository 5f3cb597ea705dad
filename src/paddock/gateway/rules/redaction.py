"""Removes the values of secrets from answers, in the forms in which programs write them.

Pure.

It is a second barrier, and misses a value after encryption, unreadable compression, truncation, double escapes or other
transformations. The first barrier is that a value only goes to the places of its binding.
"""

from __future__ import annotations

import base64
import html
import json
import math
from collections.abc import Mapping
from urllib.parse import quote, quote_plus

from paddock.gateway.protocols.gzip import TURN_BYTES, Gzip, Undecodable
from paddock.gateway.protocols.http1 import Fields
from paddock.gateway.protocols.replacer import ChainedFilter, Filter, Needles, Replacer, UnescapedReplacer

_LEAST = 8
"""Fewest bytes of a value without its line breaks for which it searches."""


def forms(value: bytes) -> set[bytes]:
    """Return a value as it is, and in base64 (at any offset of the encoded text), hexadecimal, percent encoding, JSON
    and HTML.
    """
    found = {value, value.hex().encode(), value.hex().upper().encode(), *_base64(value)}
    for quoted in (quote(value, safe=""), quote(value), quote_plus(value)):
        found |= {quoted.encode(), _lower_escapes(quoted).encode()}
    try:
        text = value.decode()
    except UnicodeDecodeError:
        return found
    for escaped in (json.dumps(text), json.dumps(text, ensure_ascii=False)):
        inner = escaped[1:-1]
        found |= {inner.encode(), inner.replace("/", "\\/").encode()}
    return found | {html.escape(text).encode(), html.escape(text, quote=False).encode()}


def _base64(value: bytes) -> set[bytes]:
    """Return a value in base64 at each of three offsets, without the characters that it shares with its neighbours."""
    found: set[bytes] = {base64.b64encode(value), base64.urlsafe_b64encode(value)}
    for before in range(3):
        first, end = math.ceil(before * 8 / 6), (before + len(value)) * 8 // 6
        for encode in (base64.b64encode, base64.urlsafe_b64encode):
            found.add(encode(bytes(before) + value)[first:end])
    return found


def _lower_escapes(quoted: str) -> str:
    parts = quoted.split("%")
    return "%".join([parts[0], *(part[:2].lower() + part[2:] for part in parts[1:])])


class Redaction:
    """The redaction of one sandbox's `values`, each with its placeholder.

    With `keep_length` a replacement is as long as the match, so that no framing changes.
    """

    def __init__(self, values: Mapping[bytes, bytes], *, keep_length: bool = False) -> None:
        self.values, self._keep_length = dict(values), keep_length
        table: dict[bytes, bytes] = {}
        for value, placeholder in values.items():
            for form in forms(value):
                table.setdefault(form, _fitted(placeholder, len(form)) if keep_length else placeholder)
        self._table, self._needles = table, Needles(tuple(table))
        self._lowered = Needles([form.lower() for form in table])
        unbroken = {form.translate(None, b"\r\n"): form for form in table}
        self._unbroken = {short: table[form] for short, form in unbroken.items() if len(short) >= _LEAST}
        self._plain = Needles(tuple(self._unbroken))

    def whole(self, data: bytes) -> bytes:
        return self._unescaped().whole(self._needles.replaced(data, self._table.__getitem__))

    def _unescaped(self) -> UnescapedReplacer:
        return UnescapedReplacer(self._plain, self._in_place)

    def _in_place(self, found: bytes, length: int) -> bytes:
        """Return the replacement for a value that takes up `length` bytes with its escapes."""
        placeholder = self._unbroken[found]
        return _fitted(placeholder, length) if self._keep_length else placeholder

    def fields(self, fields: Fields) -> Fields:
        """Redact a head or trailers. Leave out a field in whose name a value begins, in any case: HTTP/2 knows lower
        case only."""
        kept = [(name, self.whole(value)) for name, value in fields]
        if not self._lowered.found(
            b"\n".join([_joined(*field, b"") + b"\n" + _joined(*field, b" ") for field in kept])
        ):
            return kept
        return [field for field in kept if not self._begins_in_name(*field)]

    def _begins_in_name(self, name: bytes, value: bytes) -> bool:
        matches = (self._lowered.search(_joined(name, value, space), 0) for space in (b"", b" "))
        return any(match is not None and match.start() < len(name) for match in matches)

    def stream(self, *, escapes: bool = True) -> Filter:
        """Redact one stream, in pieces: `feed`, and `end` after the last.

        Without `escapes` it only finds the forms with fixed bytes, so it never waits for the end of an escape.
        """
        known = Replacer(self._needles, self._table.__getitem__)
        return ChainedFilter(known, self._unescaped()) if escapes else known


class ResponseRedaction:
    """The answer to a sandbox with secrets: `fields` of the head, then `feed` and `end` for the body.

    `rewrites`: its length changes, so it needs new framing. Undecodable, from here or from `feed`: it is unreadable,
    and must not pass.
    """

    def __init__(self, redaction: Redaction, fields: Fields) -> None:
        """Prepare one answer. `redaction` keeps lengths."""
        self._gzip: Gzip | None = None
        self._stream = redaction.stream()
        self.fields: Fields = []
        for name, value in fields:
            lower = name.lower()
            if lower == b"content-encoding" and (coding := value.strip().lower()) not in (b"", b"identity"):
                if coding not in (b"gzip", b"x-gzip") or self._gzip is not None:
                    shown = redaction.whole(value.strip())[:40].decode("latin-1")
                    raise Undecodable(f"it is encoded as {shown}, which was not asked for")
                self._gzip = Gzip()
                continue
            self.fields.append((name, value))
        self.fields = redaction.fields(self.fields)
        self.rewrites = self._gzip is not None
        if self.rewrites:
            self.fields = [field for field in self.fields if field[0].lower() not in _OF_BYTES]

    @property
    def lags(self) -> bool:
        return self._gzip is not None and self._gzip.lags

    def feed(self, data: bytes) -> bytes:
        return self._stream.feed(data if self._gzip is None else self._gzip.decode(data, TURN_BYTES))

    def end(self) -> bytes:
        return self._stream.end()


# Fields that describe the encoded bytes.
_OF_BYTES = frozenset({b"content-length", b"content-md5", b"digest", b"content-digest", b"repr-digest", b"etag"})


def _joined(name: bytes, value: bytes, space: bytes) -> bytes:
    return b"%b:%b%b" % (name.lower(), space, value.lower())


def _fitted(placeholder: bytes, length: int) -> bytes:
    return placeholder[:length].ljust(length, b"*")
