"""A few paths that stand for all: between them, every answer that some patterns can give together."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from paddock.errors import InvalidArgument

from ._globs import Glob
from ._paths import Pattern, is_overlong, normal_path

_PLAIN = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~!$&'()*+,;=:@/"
_MOST_STATES = 50_000


class Unit(msgspec.Struct, frozen=True):
    """One step of a path: as it is written, and as it is decoded."""

    written: str
    decoded: str


class _State(msgspec.Struct, frozen=True):
    """Where every pattern stands in both readings; `part` is what the part of the path is that was begun, so that only
    normal paths are walked: nothing yet, `.`, `..`, or more."""

    written: tuple[int, ...]
    decoded: tuple[int, ...]
    part: str
    slash: bool


def witnesses(patterns: Sequence[Pattern]) -> tuple[str, ...]:
    """Shortest first. InvalidArgument: the patterns are too many to compare."""
    globs = [one.written for one in patterns], [one.decoded for one in patterns]
    units = tuple(_units(patterns))
    first = _State(*(tuple(one.start for one in group) for group in globs), part="", slash=False)
    first = _step(first, Unit("/", "/"), globs)
    assert first is not None
    found: dict[tuple[bool, ...], str] = {}
    seen, row = {first}, [(first, "/")]
    while row:
        following: list[tuple[_State, str]] = []
        for state, text in row:
            if state.part not in (".", ".."):
                found.setdefault(_answer(state, globs), text)
            for unit in units:
                next = None if is_overlong(text[-3:] + unit.written) else _step(state, unit, globs)
                if next is not None and next not in seen:
                    seen.add(next)
                    following.append((next, text + unit.written))
        if len(seen) > _MOST_STATES:
            raise InvalidArgument("the paths of these policies are too many to compare", hint="compare a part of them")
        row = following
    return tuple(text for text in found.values() if normal_path(text) == text)


def _units(patterns: Sequence[Pattern]) -> Iterator[Unit]:
    """The characters that patterns name, escaped where they would not be plain, and two that none does."""
    tokens = [*(one.written.tokens for one in patterns), *(one.decoded.tokens for one in patterns)]
    named = {token for group in tokens for token in group if isinstance(token, str)}
    for character in sorted(named | {"/"}):
        if character in _PLAIN:
            yield Unit(character, character)
        if not (character.isascii() and (character.isalnum() or character in "-._~")):
            yield Unit(f"%{ord(character):02X}", character)
    yield next(Unit(other, other) for other in _PLAIN if other not in named)
    yield next(Unit(f"%{code:02X}", chr(code)) for code in range(0x80, 0x100) if chr(code) not in named)


def _step(state: _State, unit: Unit, globs: tuple[list[Glob], list[Glob]]) -> _State | None:
    """None: such a path has no normal form."""
    separates = unit.decoded == "/"
    if separates and (state.part in (".", "..") or (unit.written == "/" and state.slash)):
        return None
    if unit.written in ("%25", "%5C"):  # of an escape, or a backslash
        return None
    written = state.written
    for character in unit.written:
        written = tuple(one.step(states, character) for one, states in zip(globs[0], written, strict=True))
    decoded = tuple(one.step(states, unit.decoded) for one, states in zip(globs[1], state.decoded, strict=True))
    part = "" if separates else state.part + unit.decoded
    return _State(written, decoded, part if part in ("", ".", "..") else "more", unit.written == "/")


def _answer(state: _State, globs: tuple[list[Glob], list[Glob]]) -> tuple[bool, ...]:
    written = (one.accepts(states) for one, states in zip(globs[0], state.written, strict=True))
    decoded = (one.accepts(states) for one, states in zip(globs[1], state.decoded, strict=True))
    return (*written, *decoded)
