"""What a request names, in the form in which it is judged."""

from __future__ import annotations

import re
from urllib.parse import unquote_to_bytes

from ._names import BadHost, authority
from ._refusal import Refused

PORTS = {"http": 80, "https": 443}

_ABSOLUTE = re.compile(r"(https?)://([^/?#\\]*)(/[^#\\]*|\?[^#\\]*)?", re.IGNORECASE)
_PLAIN = re.compile(r"/(?:[A-Za-z0-9_~!$&'()*+,;=:@-]+(?:\.[A-Za-z0-9_~!$&'()*+,;=:@-]+)*/?)*")
_ESCAPE = re.compile(r"%(?![0-9A-Fa-f]{2})")
_KEPT = re.compile(rb"[^A-Za-z0-9._~!$&'()*+,;=:@/-]")


class BadTarget(Refused):
    """A request whose target two readers could take for different things."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason, status=400, rule="http")


def normal_path(target: str) -> str:
    """Path and query as rules are applied to them: unreserved characters unescaped, the others' escapes in capitals,
    slashes single. BadTarget: dot segments, escaped slashes and what no server reads the same way."""
    path, mark, query = target.partition("?")
    if _PLAIN.fullmatch(path):
        return target
    if "\\" in target or "#" in target:
        raise BadTarget("a backslash or a number sign in the path")
    if not path.startswith("/") or _ESCAPE.search(path):
        raise BadTarget("a path that does not begin with a slash, or with an escape that is none")
    raw = unquote_to_bytes(path)
    if any(byte < 0x20 or byte == 0x7F or byte == 0x5C for byte in raw):
        raise BadTarget("a control character or a backslash in the path")
    if raw.count(b"/") != path.count("/"):
        raise BadTarget("an escaped slash in the path")
    segments = raw.split(b"/")
    if any(segment in (b".", b"..") or segment.startswith((b"..;", b".;")) for segment in segments):
        raise BadTarget("a dot segment in the path")
    if re.search(rb"%[0-9A-Fa-f]{2}", raw):
        raise BadTarget("an escaped escape in the path")
    merged = re.sub(rb"/{2,}", b"/", raw)
    normal = _KEPT.sub(lambda match: b"%%%02X" % match[0][0], merged).decode("ascii")
    return normal + mark + query


def split_target(target: str, scheme: str) -> tuple[str | None, str, int, str]:
    """Scheme (None in origin form), host, port (0 then) and path with query."""
    if target.startswith("/") or target == "*":
        return None, "", 0, target
    match = _ABSOLUTE.fullmatch(target)
    if match is None:
        raise BadTarget("the target is neither a path nor an absolute http or https URL")
    named = match[1].lower()
    host, port = read_authority(match[2], PORTS[named])
    path = match[3] or "/"
    return named, host, port, path if path.startswith("/") else f"/{path}"


def read_authority(text: str, default: int) -> tuple[str, int]:
    try:
        return authority(text, default)
    except BadHost as error:
        raise BadTarget(str(error)) from None
