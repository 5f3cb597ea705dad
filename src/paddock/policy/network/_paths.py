"""The canonical form of request paths, which the gateway compares and sends, and the patterns for them.

Servers don't agree whether `%2F` is a character of a part, or a separator. So a path has two readings: the written
text, and the decoded one. An allow rule must match both readings. A deny rule applies if it matches either.
"""

from __future__ import annotations

import re

import msgspec

from ._globs import Glob, Token, compile_glob, tokens_of

_UNRESERVED = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~")
_PATH = re.compile(r"(?:[A-Za-z0-9\-._~!$&'()*+,;=:@/]|%[0-9A-Fa-f]{2})*")
_QUERY = re.compile(r"(?:[\x21\x22\x24-\x5b\x5d-\x7e])*")  # what browsers send; no `#`, no backslash
_ESCAPE = re.compile(r"%([0-9A-Fa-f]{2})")
_STRANGE = re.compile(r"%(?:[01][0-9A-F]|5C|7F|25[0-9A-Fa-f]{2})")
_OVERLONG = re.compile(r"%C[01]|%E0%[89]|%F0%8|%F8%8[0-7]|%FC%8[0-3]")
"""UTF-8 in more bytes than it takes: to some servers `%C0%AE` is a dot, and `%C0%AF` a slash."""
_DOTS = re.compile(r"/\.\.?(?:/|$)")
_SLASHES = re.compile("//+")
MOST_CHARS = 16_384


def normal_path(text: str) -> str | None:
    """Return the normal form of a path with its query, or None if there is none and the gateway must refuse it.

    The normal form decodes unreserved characters, writes other escapes in upper case, resolves dot segments and merges
    slashes. There is none if a decoded reading would climb above the root, or if servers could read the path
    differently.
    """
    if text == "*":
        return text
    path, mark, query = text.partition("?")
    if not path.startswith("/") or len(text) > MOST_CHARS:
        return None
    if _PATH.fullmatch(path) is None or _QUERY.fullmatch(query) is None:
        return None
    path = _ESCAPE.sub(_decoded_if_plain, path)
    if _is_ambiguous(path):
        return None
    if "//" in path:
        path = _SLASHES.sub("/", path)
    if "/." in path:
        path = _without_dots(path)
    return path + mark + query


def _decoded_if_plain(match: re.Match[str]) -> str:
    value = int(match[1], 16)
    return chr(value) if value in _UNRESERVED else f"%{value:02X}"


def _is_ambiguous(path: str) -> bool:
    """Find escaped controls and backslashes, escapes of escapes, overlong UTF-8, and dot segments that only some
    servers see."""
    if "%" in path:
        if _STRANGE.search(path) or is_overlong(path):
            return True
        if "%2F" in path and _DOTS.search(path.replace("%2F", "/")):
            return True
    return ";" in path and any(part.partition(";")[0] in (".", "..") for part in path.split("/") if ";" in part)


def is_overlong(path: str) -> bool:
    """Tell whether UTF-8 is in there that takes more bytes than it needs."""
    return _OVERLONG.search(path) is not None


def _without_dots(path: str) -> str:
    parts: list[str] = []
    for part in (all_parts := path.split("/")[1:]):
        if part == "..":
            del parts[-1:]
        elif part != ".":
            parts.append(part)
    if all_parts[-1] in (".", ".."):
        parts.append("")
    return "/" + "/".join(parts)


def decoded(path: str) -> str:
    """Return the other reading: every escape is the byte that it stands for, as a character of the same number."""
    return _ESCAPE.sub(lambda match: chr(int(match[1], 16)), path) if "%" in path else path


class Pattern(msgspec.Struct, frozen=True):
    """A compiled pattern. `text` is its normal form."""

    text: str
    written: Glob
    decoded: Glob

    def allows(self, path: str, other: str) -> bool:
        """Allow `path`, as written and without its query, if `other`, its decoded reading, matches too."""
        return self.written.matches(path) and (path == other or self.decoded.matches(other))

    def denies(self, path: str, other: str) -> bool:
        return self.written.matches(path) or self.decoded.matches(other)


def pattern(text: str) -> Pattern:
    """ValueError, in words that follow the pattern."""
    if not text.startswith("/"):
        raise ValueError("does not begin with `/`")
    for character, why in (("?", "queries are not compared"), ("#", "no request has a fragment")):
        if character in text:
            raise ValueError(f"has a `{character}`: {why}")
    if "***" in text:
        raise ValueError("has three `*` in a row: `*` or `**` is meant")
    normal = normal_path(text)
    if normal is None:
        raise ValueError("is not in the normal form of a path: write %XX for all but plain ASCII, and no dot segments")
    plain: list[Token] = []
    for part in re.split(r"(\*+)", normal):
        plain += tokens_of(part) if part.startswith("*") else list(decoded(part))
    return Pattern(normal, compile_glob(tokens_of(normal)), compile_glob(tuple(plain)))
