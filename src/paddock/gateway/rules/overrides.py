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
_WITH_DESTINATION = frozenset({"COPY", "MOVE"})
_ORIGIN = re.compile("https?://[^/?#]*", re.IGNORECASE)
_METHOD = re.compile(r"[A-Z]{1,32}")
_PARAMETERS = re.compile("(?:;|%3B)[^/]*")
_ESCAPE = re.compile(rb"%([0-9A-Fa-f]{2})")
_CUT = re.compile(rb"%[0-9A-Fa-f]?\Z")
# PHP reads a dot, a blank or a bracket at the beginning of a name as `_`. It cuts a name at a NUL.
_IN_QUERY = re.compile(r"[._\[]method")
_IN_FORM = re.compile(rb"[&;](?:[._\[]method|x-(?:http-)?method(?:-override)?)[=\0]")
_IN_PART = re.compile(rb"name(?:=|\*[0-9]{0,2}\*?=[^;]{0,20}?)(?:[._\[]|x-(?:http-)?)method")
_JSON_ESCAPE = re.compile(rb"\\u00(5[Ff]|[67][0-9A-Fa-f])")
_JSON_CUT = re.compile(rb"\\(?:u[0-9A-Fa-f]{0,3})?\Z")
_IN_JSON = re.compile(rb'"_method":')
_SEEN = 48
_MOST_READINGS = 16


def readings(method: str, path: str, fields: Fields) -> Iterator[tuple[str, str, str]]:
    """Yield the other methods and normal paths that a server may read, and the reasons.

    Raise Refused for malformed ones.
    """
    methods, paths = {method: ""}, {path: ""}
    methods.setdefault(method.upper(), "a server without regard to case")
    plain, mark, query = path.partition("?")
    if (shorter := _PARAMETERS.sub("", plain)) != plain:
        paths.setdefault(normal((shorter or "/") + mark + query), "a server that cuts parameters off a path")
    destinations: list[str] = []
    for name, raw in fields:
        field, value = name.decode("latin-1").lower().replace("_", "-"), raw.decode("latin-1").strip()
        if field in _METHOD_FIELDS:
            methods.setdefault(_method(value, field), field)
        elif field in _PATH_FIELDS:
            if not value.startswith("/"):
                raise Refused(f"{field} is not a path", status=400, rule="http")
            paths.setdefault(normal(value), field)
        elif field == "destination":
            destinations.append(_ORIGIN.sub("", value, count=1))
    for pair in re.split("[&;]", query):
        key, _, value = pair.partition("=")
        parameter = unquote_plus(key).partition("\0")[0].strip().lower()
        if _IN_QUERY.fullmatch(parameter) or parameter.replace("_", "-") in _METHOD_FIELDS:
            methods.setdefault(_method(unquote_plus(value).strip(), "the query"), "the query")
    if methods.keys() & _WITH_DESTINATION:  # of WebDAV: they write there
        for destination in destinations:
            paths.setdefault(normal(destination), "its destination")
    if len(methods) * len(paths) > _MOST_READINGS:
        raise Refused("too many fields or parameters that replace its method or path", status=400, rule="http")
    for (one, why), (other, where) in product(methods.items(), paths.items()):
        if why or where:
            yield one, other, " and ".join(filter(None, (why, where)))


def _method(value: str, place: str) -> str:
    if not _METHOD.fullmatch(value.upper()):
        raise Refused(f"{place} names no method", status=400, rule="http")
    return value.upper()


class FormWatch:
    """Look for `_method` and its like in a form, or in JSON, in pieces of any size."""

    def __init__(self, kind: str) -> None:
        """Watch a body, which is `multipart`, `urlencoded` or `json`."""
        self._kind, self._seen, self._cut = kind, b"&", b""

    @classmethod
    def of(cls, fields: Fields) -> FormWatch | None:
        """Return a watch, or None if the body isn't such a one. Raise Refused if the watch can't read the form."""
        known = [(name.lower().replace(b"_", b"-"), value.lower()) for name, value in fields]
        types = b",".join(value for name, value in known if name == b"content-type").decode("latin-1")
        kinds = [kind for kind in ("multipart", "urlencoded", "json") if kind in types]
        if types and not kinds:
            return None
        if len(kinds) > 1:
            raise Refused("two content types", status=400, rule="http")
        if any(name == b"content-encoding" and value not in (b"", b"identity") for name, value in known):
            if kinds == ["json"]:
                return None
            raise Refused("an encoded form, which may replace the method", rule="override")
        return cls(kinds[0] if kinds else "urlencoded")

    def feed(self, data: bytes) -> None:
        """Read on. Raise Refused if `_method` is there."""
        if self._kind == "multipart":
            text, pattern = data.translate(None, b"\\\"' \t\r\n"), _IN_PART
        elif self._kind == "json":
            text, pattern = self._unescaped(data, _JSON_CUT, _JSON_ESCAPE), _IN_JSON
        else:
            text, pattern = self._unescaped(data.replace(b"+", b" "), _CUT, _ESCAPE), _IN_FORM
        text = self._seen + text.lower()
        if pattern.search(text):
            raise Refused(
                "the body has a field that replaces the method, such as _method, and the rules here are by method",
                rule="override",
                hint="send the request with the method that is meant",
            )
        self._seen = text[-_SEEN:]

    def _unescaped(self, data: bytes, cut: re.Pattern[bytes], escape: re.Pattern[bytes]) -> bytes:
        """Return the text without escapes and blanks. Keep an escape that the end of the piece cuts."""
        data = self._cut + data
        match = cut.search(data)
        self._cut = data[match.start() :] if match else b""
        whole = data[: len(data) - len(self._cut)]
        return escape.sub(lambda found: bytes((int(found[1], 16),)), whole).translate(None, b" \t\r\n")
