"""Finds fields, parameters and form fields that make a server replace a request's method or path.

Pure.

Frameworks honour them (Rails, Laravel, Symfony, Express, IIS), and a rule by methods or paths wouldn't notice.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import product
from urllib.parse import unquote_plus

from paddock.gateway.protocols.http1 import Fields
from paddock.gateway.protocols.names import normal
from paddock.gateway.protocols.refusal import Refused

METHODS = (
    *("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "LINK", "UNLINK", "COPY", "MOVE", "LOCK", "UNLOCK"),
    *("MKCOL", "PROPFIND", "PROPPATCH", "REPORT", "SEARCH", "PURGE"),
)
"""Methods that the `_method` of a form may name."""
_METHOD_FIELDS = frozenset({"x-http-method-override", "x-http-method", "x-method-override"})
_PATH_FIELDS = frozenset({"x-original-url", "x-rewrite-url"})
_METHOD = re.compile(r"[A-Z]{1,32}")
_ESCAPE = re.compile(rb"%([0-9A-Fa-f]{2})")
_CUT = re.compile(rb"%[0-9A-Fa-f]?\Z")
# PHP reads a dot, a blank or a bracket at the beginning of a name as `_`.
_IN_FORM = re.compile(rb"[&;][._\[]method=")
_IN_PART = re.compile(rb"name(?:=|\*[0-9]{0,2}\*?=[^;]{0,20}?)[._\[]method")
_SEEN = 48


def readings(method: str, path: str, fields: Fields) -> Iterator[tuple[str, str, str]]:
    """Yield the other methods and normal paths that a server may read, and the reasons.

    Raise Refused for malformed ones.
    """
    methods, paths = {method: ""}, {path: ""}
    for name, raw in fields:
        field, value = name.decode("latin-1").lower().replace("_", "-"), raw.decode("latin-1").strip()
        if field in _METHOD_FIELDS:
            methods.setdefault(_method(value, field), field)
        elif field in _PATH_FIELDS:
            if not value.startswith("/"):
                raise Refused(f"{field} is not a path", status=400, rule="http")
            paths.setdefault(normal(value), field)
    for pair in re.split("[&;]", path.partition("?")[2]):
        key, _, value = pair.partition("=")
        parameter = unquote_plus(key).strip().lower().replace("_", "-")
        if parameter == "-method" or parameter in _METHOD_FIELDS:
            methods.setdefault(_method(unquote_plus(value).strip(), "the query"), "the query")
    for (one, why), (other, where) in product(methods.items(), paths.items()):
        if why or where:
            yield one, other, " and ".join(filter(None, (why, where)))


def _method(value: str, place: str) -> str:
    if not _METHOD.fullmatch(value.upper()):
        raise Refused(f"{place} names no method", status=400, rule="http")
    return value.upper()


class FormWatch:
    """Look for `_method` in a form, in pieces of any size."""

    def __init__(self, *, parts: bool) -> None:
        """Watch a form. `parts`: it is multipart."""
        self._parts, self._seen, self._cut = parts, b"&", b""

    @classmethod
    def of(cls, fields: Fields) -> FormWatch | None:
        """Return a watch, or None if the body isn't a form. Raise Refused if the watch can't read the form."""
        known = [(name.lower().replace(b"_", b"-"), value.lower()) for name, value in fields]
        kind = b",".join(value for name, value in known if name == b"content-type")
        parts = b"multipart" in kind
        if kind and not parts and b"urlencoded" not in kind:
            return None
        if parts and b"urlencoded" in kind:
            raise Refused("two content types", status=400, rule="http")
        if any(name == b"content-encoding" and value not in (b"", b"identity") for name, value in known):
            raise Refused("an encoded form, which may replace the method", rule="override")
        return cls(parts=parts)

    def feed(self, data: bytes) -> None:
        """Read on. Raise Refused if `_method` is there."""
        if self._parts:
            text, pattern = data.translate(None, b"\\\"' \t\r\n"), _IN_PART
        else:
            data = self._cut + data
            cut = _CUT.search(data)
            self._cut = data[cut.start() :] if cut else b""
            whole = data[: len(data) - len(self._cut)]
            plain = _ESCAPE.sub(lambda match: bytes((int(match[1], 16),)), whole.replace(b"+", b" "))
            text, pattern = plain.translate(None, b" \t\r\n"), _IN_FORM
        text = self._seen + text.lower()
        if pattern.search(text):
            raise Refused(
                "the form has a field _method, and the rules here are by method",
                rule="override",
                hint="send the request with the method that is meant",
            )
        self._seen = text[-_SEEN:]
