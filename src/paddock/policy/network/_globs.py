"""Globs with `*` and `**` over untrusted texts. Time is linear in the text, for every pattern."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TypeAlias

import msgspec

ANY: int = 1
"""`*`: any run of characters but `/`."""
ALL: int = 2
"""`**`: any run of characters."""
Token: TypeAlias = str | int
"""A literal character, ANY or ALL. Two stars never follow each other."""

_REGEX_STARS = 2
_REGEX_CHARS = 512
"""Within these limits `re` is faster. Beyond them its backtracking, once for each star, could be slow."""


class Glob(msgspec.Struct, frozen=True):
    tokens: tuple[Token, ...]
    _regex: re.Pattern[str] | None
    literals: dict[str, int]
    stars: tuple[int, int]
    ends: tuple[int, int]
    """The states before the first token, and behind the last."""

    def matches(self, text: str) -> bool:
        if self._regex is not None and len(text) <= _REGEX_CHARS:
            return self._regex.fullmatch(text) is not None
        states = self.start
        for character in text:
            states = self.step(states, character)
            if not states:
                return False
        return self.matched(states) != 0

    @property
    def start(self) -> int:
        """Return a set of states: bit `n` says that what was read matches the first `n` tokens."""
        return self._beyond_stars(self.ends[0])

    def step(self, states: int, character: str) -> int:
        any_bits, all_bits = self.stars
        stay = states & (all_bits if character == "/" else any_bits | all_bits)
        return self._beyond_stars(((states & self.literals.get(character, 0)) << 1) | stay)

    def matched(self, states: int) -> int:
        """Return a bit for each glob that matches: `union` has several."""
        return states & self.ends[1]

    def _beyond_stars(self, states: int) -> int:
        any_bits, all_bits = self.stars
        return states | (states & (any_bits | all_bits)) << 1


def compile_glob(tokens: tuple[Token, ...]) -> Glob:
    literals: dict[str, int] = {}
    stars = [0, 0]
    for index, token in enumerate(tokens):
        if isinstance(token, str):
            literals[token] = literals.get(token, 0) | 1 << index
        else:
            stars[token - 1] |= 1 << index
    regex = None
    if sum(isinstance(token, int) for token in tokens) <= _REGEX_STARS:
        regex = re.compile("".join(map(_piece, tokens)), re.DOTALL)
    return Glob(tokens, regex, literals, (stars[0], stars[1]), (1, 1 << len(tokens)))


def union(globs: Iterable[Glob]) -> Glob:
    """Return one automaton for all of them. The bits of each glob follow those of the previous."""
    literals: dict[str, int] = {}
    masks = [0, 0, 0, 0]
    offset = 0
    for glob in globs:
        for character, bits in glob.literals.items():
            literals[character] = literals.get(character, 0) | bits << offset
        masks = [mask | bits << offset for mask, bits in zip(masks, (*glob.stars, *glob.ends), strict=True)]
        offset += len(glob.tokens) + 1
    return Glob((), None, literals, (masks[0], masks[1]), (masks[2], masks[3]))


def _piece(token: Token) -> str:
    return re.escape(token) if isinstance(token, str) else "[^/]*" if token == ANY else ".*"


def tokens_of(text: str) -> tuple[Token, ...]:
    parts: list[str] = re.findall(r"\*\*|\*|[^*]", text)
    return tuple(ALL if part == "**" else ANY if part == "*" else part for part in parts)


def overlap(first: Glob, second: Glob) -> bool:
    """Tell whether there is a text that both match."""
    reached = {(0, 0)}
    pending = [(0, 0)]
    while pending:
        i, j = pending.pop()
        if i == len(first.tokens) and j == len(second.tokens):
            return True
        for step in _steps(first.tokens, second.tokens, i, j):
            if step not in reached:
                reached.add(step)
                pending.append(step)
    return False


def _steps(first: tuple[Token, ...], second: tuple[Token, ...], i: int, j: int) -> list[tuple[int, int]]:
    a = first[i] if i < len(first) else None
    b = second[j] if j < len(second) else None
    steps: list[tuple[int, int]] = []
    if isinstance(a, int):
        steps.append((i + 1, j))  # the run ends here
        if isinstance(b, str) and (a == ALL or b != "/"):
            steps.append((i, j + 1))
    if isinstance(b, int):
        steps.append((i, j + 1))
        if isinstance(a, str) and (b == ALL or a != "/"):
            steps.append((i + 1, j))
    if isinstance(a, str) and a == b:
        steps.append((i + 1, j + 1))
    return steps
