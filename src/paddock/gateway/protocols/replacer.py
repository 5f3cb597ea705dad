"""Searches a stream for a few byte strings, independent of its division into pieces. Pure."""

from __future__ import annotations

import re
from array import array
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Protocol, TypeAlias

Replacement: TypeAlias = Callable[[bytes], bytes]
"""Returns the replacement for a match. It may raise."""


class Filter(Protocol):
    """Transforms a stream. It retains the possible beginning of a match.

    While it `lags` it has more to do than fits into one turn: then the next `feed` brings no data.
    """

    @property
    def lags(self) -> bool: ...

    def feed(self, data: bytes) -> bytes: ...

    def end(self) -> bytes: ...


class ChainedFilter:
    """One filter, and another behind it."""

    def __init__(self, first: Filter, then: Filter) -> None:
        self._first, self._then = first, then

    @property
    def lags(self) -> bool:
        return self._first.lags or self._then.lags

    def feed(self, data: bytes) -> bytes:
        return self._then.feed(self._first.feed(data))

    def end(self) -> bytes:
        return self._then.feed(self._first.end()) + self._then.end()


class Needles:
    """Byte strings to search for. The first match wins, and at one position the longest."""

    def __init__(self, needles: Sequence[bytes]) -> None:
        assert all(needles)
        self._all = tuple(sorted(set(needles), key=lambda needle: (-len(needle), needle)))
        self._pattern = re.compile(b"|".join(map(re.escape, self._all))) if self._all else None

    @property
    def longest(self) -> int:
        return max(map(len, self._all), default=0)

    def found(self, data: bytes) -> list[bytes]:
        """Return each needle that is in there, once."""
        return [needle for needle in self._all if needle in data]

    def replaced(self, data: bytes, replacement: Replacement) -> bytes:
        if self._pattern is None or not any(needle in data for needle in self._all):
            return data
        return self._pattern.sub(lambda match: replacement(match[0]), data)

    def begun(self, data: bytes) -> list[int]:
        """Return, in order, where a needle begins that may go on in the next piece."""
        places: set[int] = set()
        for needle in self._all:
            start = max(0, len(data) - len(needle) + 1)
            first = needle[:1]
            while (start := data.find(first, start)) >= 0:
                if needle.startswith(data[start:]):
                    places.add(start)
                start += 1
        return sorted(places)

    def walk(self, data: bytes, begun: Sequence[int]) -> tuple[list[re.Match[bytes]], int]:
        """Find needles one after the other, and up to where that is final. `begun` is where one begins that may go
        on."""
        matches: list[re.Match[bytes]] = []
        done = 0
        while True:
            hold = next((place for place in begun if place >= done), len(data))
            match = self.search(data, done)
            if match is None or match.start() >= hold:
                return matches, hold
            matches.append(match)
            done = match.end()

    def search(self, data: bytes, start: int) -> re.Match[bytes] | None:
        return None if self._pattern is None else self._pattern.search(data, start)


class Replacer:
    """Replaces the needles in one stream. It retains only the possible beginning of a needle."""

    lags = False

    def __init__(self, needles: Needles, replacement: Replacement) -> None:
        self._needles, self._replacement = needles, replacement
        self._held = b""

    def feed(self, data: bytes) -> bytes:
        data = self._held + data
        begun = self._needles.begun(data)
        if not begun and not self._needles.found(data):  # nearly always
            self._held = b""
            return data
        parts: list[bytes] = []
        done = 0
        matches, hold = self._needles.walk(data, begun)
        for match in matches:
            parts += (data[done : match.start()], self._replacement(match[0]))
            done = match.end()
        self._held = data[hold:]
        return b"".join((*parts, data[done:hold]))

    def end(self) -> bytes:
        """Return the retained bytes, at the end of the stream."""
        held, self._held = self._held, b""
        return self._needles.replaced(held, self._replacement)


_HEX = rb"[0-9A-Fa-f]"
# The end of a piece may cut an escape.
_ESCAPE = re.compile(
    rb"%(?:HH|H?\Z)"
    rb"|\\(?:u(?:HHHH|H{0,3}\Z)|x(?:HH|H?\Z)|[bfnrt\"'\\/]|\Z)"
    rb"|&(?:#(?:[xX](?:H{1,14}(?:;|(?!H|\Z))|H{0,14}\Z)|[0-9]{1,15}(?:;|(?![0-9]|\Z))|[0-9]{0,15}\Z)"
    rb"|(?:amp|lt|gt|quot|apos);|[a-z]{0,4}\Z)".replace(b"H", _HEX)
)
_LETTERS = {b"b": b"\b", b"f": b"\f", b"n": b"\n", b"r": b"\r", b"t": b"\t"}
_ENTITIES = {b"&amp;": b"&", b"&lt;": b"<", b"&gt;": b">", b"&quot;": b'"', b"&apos;": b"'"}
_NUMBER = re.compile(rb"\\u(HHHH)|%(HH)|\\x(HH)|&#[xX](H+);?|&#([0-9]+);?".replace(b"H", _HEX))
_SIGNS = bytes.maketrans(b"\\&", b"%%")
_SECOND = frozenset(b"0123456789ABCDEFabcdef" + b"bfnrtux\"'\\/" + b"#algq")
"""The bytes that may follow an escape's first byte."""
_BREAKS = b"\r\n"
_BREAK = re.compile(rb"([\r\n]+)")
LONGEST = 18
"""Bytes of an escape."""


def _decode(escape: bytes) -> bytes | None:
    """Return the meaning of an escape, or None if it is incomplete."""
    if escape in _ENTITIES:
        return _ENTITIES[escape]
    match = _NUMBER.fullmatch(escape)
    if match is None:
        letter = escape[1:]
        is_whole = escape[:1] == b"\\" and len(letter) == 1 and letter not in b"ux"
        return _LETTERS.get(letter, letter) if is_whole else None
    number = int(match[match.lastindex or 0], 10 if match.lastindex == 5 else 16)
    if match.lastindex in (2, 3):
        return bytes((number,))
    return chr(number).encode(errors="replace") if number <= 0x10FFFF else b"?"


def _may_go_on(escape: bytes) -> bool:
    return _decode(escape) is None or (escape[:2] == b"&#" and escape[-1:] != b";")


@lru_cache(4096)
def _meaning(escape: bytes) -> bytes:
    """Return the meaning of an escape, without line breaks."""
    return (_decode(escape) or b"").translate(None, _BREAKS)


def _split(data: bytes) -> list[bytes]:
    """Text and escapes in turn. Much faster than a regular expression where there are few escapes."""
    parts: list[bytes] = []
    first, *pieces = data.translate(_SIGNS).split(b"%")
    at, done = len(first), 0
    for piece in pieces:
        if at >= done and (not piece or piece[0] in _SECOND) and (match := _ESCAPE.match(data, at)) is not None:
            parts += (data[done:at], match[0])
            done = match.end()
        at += 1 + len(piece)
    parts.append(data[done:])
    return parts


class _Text:
    """A text, and for each byte of its `plain` reading where that begins and ends in it."""

    def __init__(self, parts: list[bytes]) -> None:
        """Join `parts`, text and escapes in turn."""
        self._starts, self._ends = array("L"), array("L")
        pieces: list[bytes] = []
        at = 0
        for index, part in enumerate(parts):
            if index % 2:
                found = _meaning(part)
                self._starts.extend([at] * len(found))
                self._ends.extend([at + len(part)] * len(found))
                pieces.append(found)
                at += len(part)
                continue
            for turn, line in enumerate(_BREAK.split(part)):
                if not turn % 2:
                    self._starts.extend(range(at, at + len(line)))
                    self._ends.extend(range(at + 1, at + len(line) + 1))
                    pieces.append(line)
                at += len(line)
        self.plain = b"".join(pieces)

    def start(self, at: int) -> int:
        return self._starts[at]

    def end(self, at: int) -> int:
        return self._ends[at - 1]


class UnescapedReplacer:
    """A `Replacer` that decodes each escape once and ignores line breaks.

    It replaces a match in the original text.

    It retains the possible beginning of a needle: at most `LONGEST` bytes for each of the needle's. It therefore
    doesn't find a needle with more line breaks than that.
    """

    lags = False

    def __init__(self, needles: Needles, replacement: Callable[[bytes, int], bytes]) -> None:
        """Replace matches with the result of `replacement`, which gets the needle and its length in the text."""
        self._needles, self._replacement = needles, replacement
        self._most = LONGEST * (needles.longest + 1)
        self._held = b""

    def feed(self, data: bytes) -> bytes:
        done, self._held = self._passed(self._held + data)
        return done

    def end(self) -> bytes:
        held, self._held = self._held, b""
        return self.whole(held)

    def whole(self, data: bytes) -> bytes:
        parts = _split(data + b"\0")  # so that no escape is cut
        if not self._needles.found(_plain(parts)):
            return data
        return self._replaced(_Text(parts), data, [], len(data))[0]

    def _passed(self, data: bytes) -> tuple[bytes, bytes]:
        """Return the bytes that go on, and the ones to retain."""
        parts, stop = _split(data), len(data)
        if len(parts) > 1 and not parts[-1] and _may_go_on(parts[-2]):
            stop -= len(parts[-2])
            del parts[-2:]
        plain = _plain(parts)
        begun = self._needles.begun(plain)
        if not begun and not self._needles.found(plain):  # nearly always
            return data[:stop], data[stop:]
        text = _Text(parts)
        begun = [at for at in begun if len(data) - text.start(at) <= self._most]
        return self._replaced(text, data, begun, stop)

    def _replaced(self, text: _Text, data: bytes, begun: list[int], stop: int) -> tuple[bytes, bytes]:
        """Replace needles and split as `_passed` does. `begun`: where in the plain reading a needle begins that may go
        on."""
        parts: list[bytes] = []
        written = 0
        matches, hold = self._needles.walk(text.plain, begun)
        for match in matches:
            start, end = text.start(match.start()), text.end(match.end())
            parts += (data[written:start], self._replacement(match[0], end - start))
            written = end
        stop = text.start(hold) if hold < len(text.plain) else stop
        return b"".join((*parts, data[written:stop])), data[stop:]


def _plain(parts: list[bytes]) -> bytes:
    decoded = parts.copy()
    decoded[1::2] = map(_meaning, parts[1::2])
    return b"".join(decoded).translate(None, _BREAKS)
