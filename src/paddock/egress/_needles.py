"""Looking for a few byte strings in a stream, whatever pieces it comes in. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

Replacement: TypeAlias = Callable[[bytes], bytes]
"""Of what was found, what is to stand there. It may raise."""


class Needles:
    """The first that begins is found first; of those that begin at one place, the longest."""

    def __init__(self, needles: Sequence[bytes]) -> None:
        assert all(needles)
        self._all = tuple(sorted(set(needles), key=lambda needle: (-len(needle), needle)))
        self._pattern = re.compile(b"|".join(map(re.escape, self._all))) if self._all else None

    def __bool__(self) -> bool:
        return bool(self._all)

    @property
    def longest(self) -> int:
        return max(map(len, self._all), default=0)

    def found(self, data: bytes) -> list[bytes]:
        """All that are in there, each once."""
        return [needle for needle in self._all if needle in data]

    def replaced(self, data: bytes, replacement: Replacement) -> bytes:
        if self._pattern is None or not any(needle in data for needle in self._all):
            return data
        return self._pattern.sub(lambda match: replacement(match[0]), data)

    def begun(self, data: bytes) -> list[int]:
        """Where one begins that may go on in the next piece, in order."""
        places: set[int] = set()
        for needle in self._all:
            start = max(0, len(data) - len(needle) + 1)
            first = needle[:1]
            while (start := data.find(first, start)) >= 0:
                if needle.startswith(data[start:]):
                    places.add(start)
                start += 1
        return sorted(places)

    def search(self, data: bytes, start: int) -> re.Match[bytes] | None:
        return None if self._pattern is None else self._pattern.search(data, start)


class Replacer:
    """One stream: what it is fed comes out with the needles replaced. What is held back is the beginning of a needle,
    and never more."""

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
        while True:
            hold = next((place for place in begun if place >= done), len(data))
            match = self._needles.search(data, done)
            if match is None or match.start() >= hold:
                parts.append(data[done:hold])
                self._held = data[hold:]
                return b"".join(parts)
            parts += (data[done : match.start()], self._replacement(match[0]))
            done = match.end()

    def end(self) -> bytes:
        """What was held back and went on no further."""
        held, self._held = self._held, b""
        return self._needles.replaced(held, self._replacement)


def by_table(table: Mapping[bytes, bytes]) -> Replacement:
    return table.__getitem__
