"""Compile regular expressions to programs that a guest runs in linear time (`native/patterns.h`).

Python's own parser reads the pattern, so that it means what it means to `re` with `re.ASCII`. Constructs that no
program in linear time has are refused by name (`docs/patterns.md`).
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from paddock.errors import InvalidArgumentError

from ._place import encode

if TYPE_CHECKING:
    import sre_parse as parser
else:
    from re import _parser as parser

_MOST_BYTES = 8192
_MOST_STEPS = _MOST_RANGES = 4096
_LITERAL_BYTES = 64
_AFTER_BRACKET = {ord(":"), ord("."), ord("=")}
_MATCH, _READ, _SPLIT, _ASSERT = range(4)
_LAST_CHARACTER = 0x10FFFF
_NEWLINE = ord("\n")
_FOREIGN = re.UNICODE | re.LOCALE
_POSITIONS = {
    "AT_BEGINNING_STRING": 0,
    "AT_END_STRING": 1,
    "AT_END": 2,
    "AT_BEGINNING": 0,
    "AT_BOUNDARY": 5,
    "AT_NON_BOUNDARY": 6,
}
_OF_LINES = {"AT_BEGINNING": 3, "AT_END": 4}
_CLASSES = {
    "DIGIT": [(0x30, 0x39)],
    "SPACE": [(0x09, 0x0D), (0x20, 0x20)],
    "WORD": [(0x30, 0x39), (0x41, 0x5A), (0x5F, 0x5F), (0x61, 0x7A)],
}
_REFUSED = {
    "GROUPREF": "back reference",
    "GROUPREF_EXISTS": "conditional group",
    "ATOMIC_GROUP": "atomic group",
    "POSSESSIVE_REPEAT": "possessive repetition",
}

_Range = tuple[int, int]
_Step = tuple[int, int, int]
"""Operation and two operands. Those of SPLIT are relative to the step."""


class Program(NamedTuple):
    """The fields of GREP."""

    steps: tuple[int, ...]
    ranges: tuple[int, ...]
    literal: bytes
    begins: tuple[int, ...]


def compile_pattern(pattern: str) -> Program:
    """Return the program of a pattern. InvalidArgumentError with what is wrong with it."""
    if len(encode(pattern)) > _MOST_BYTES:
        raise _refused("pattern too large")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what may mean something else in a later Python
            tree = parser.parse(pattern, re.ASCII)
        return _Compiler(pattern).compile(tree, tree.state.flags)
    except (re.error, ValueError, OverflowError) as error:
        raise _refused(str(error)) from None
    except RecursionError:
        raise _refused("groups nested too deeply") from None


def _refused(why: str) -> InvalidArgumentError:
    return InvalidArgumentError(f"not a regular expression of this guest's: {why}")


class _Compiler:
    def __init__(self, pattern: str) -> None:
        self._pattern = pattern
        self._ranges: list[_Range] = []
        self._places: dict[tuple[_Range, ...], int] = {}

    def compile(self, tree: parser.SubPattern, flags: int) -> Program:
        steps = [*self._sequence(tree, flags), (_MATCH, 0, 0)]
        for at, (op, first, second) in enumerate(steps):
            if op == _SPLIT:
                steps[at] = (op, at + first, at + second)
        return Program(
            steps=tuple(number for step in steps for number in step),
            ranges=tuple(number for span in self._ranges for number in span),
            literal=_literal(tree, flags),
            begins=self._begins(steps),
        )

    def _sequence(self, tree: parser.SubPattern, flags: int) -> list[_Step]:
        steps: list[_Step] = []
        for op, value in _items(tree):
            steps += self._piece(op.name, value, flags)
            _limit(len(steps))
        return steps

    def _piece(self, op: str, value: Any, flags: int) -> list[_Step]:
        match op:
            case "LITERAL" | "NOT_LITERAL":
                return self._read([(value, value)], flags, negated=op == "NOT_LITERAL")
            case "ANY":
                return self._read([] if flags & re.DOTALL else [(_NEWLINE, _NEWLINE)], flags, negated=True)
            case "IN":
                return self._set(value, flags)
            case "AT":
                position = _OF_LINES.get(value.name) if flags & re.MULTILINE else None
                return [(_ASSERT, _POSITIONS[value.name] if position is None else position, 0)]
            case "BRANCH":
                return self._branch([self._sequence(one, flags) for one in value[1]])
            case "SUBPATTERN":
                _, on, off, inner = value
                if on & _FOREIGN:
                    raise _refused("flag (?u) or (?L)")
                return self._sequence(inner, (flags | on) & ~off)
            case "MAX_REPEAT" | "MIN_REPEAT":  # a lazy one matches the same texts
                least, most, inner = value
                return self._repeat(least, most, self._sequence(inner, flags))
            case "ASSERT" | "ASSERT_NOT":
                raise _refused("look ahead" if value[0] > 0 else "look behind")
            case _:
                raise _refused(_REFUSED.get(op, op))

    def _branch(self, choices: Sequence[list[_Step]]) -> list[_Step]:
        *others, steps = choices
        for choice in reversed(others):
            end = len(steps) + 1
            steps = [(_SPLIT, 1, len(choice) + 2), *choice, (_SPLIT, end, end), *steps]
            _limit(len(steps))
        return steps

    def _repeat(self, least: int, most: int, once: list[_Step]) -> list[_Step]:
        endless = most == parser.MAXREPEAT
        optional = 0 if endless else (most - least) * (len(once) + 1)
        _limit(least * len(once) + optional)
        if not once:
            return []
        steps = once * least
        if endless:
            again = (_SPLIT, -len(once), 1)
            return [*steps, again] if least else [(_SPLIT, 1, len(once) + 2), *once, again]
        while optional:
            steps += [(_SPLIT, 1, optional), *once]
            optional -= len(once) + 1
        return steps

    def _set(self, items: Sequence[Any], flags: int) -> list[_Step]:
        spans: list[_Range] = []
        negated = False
        for (op, value), (_, following) in zip(items, [*items[1:], (None, None)], strict=True):
            if op.name == "NEGATE":
                negated = True
            elif op.name == "LITERAL":
                spans.append((value, value))
                if value == ord("[") and following in _AFTER_BRACKET and re.search(r"(?<!\\)\[[:.=]", self._pattern):
                    raise _refused("POSIX class ([:name:])")
            elif op.name == "RANGE":
                spans.append(value)
            else:
                name = value.name.removeprefix("CATEGORY_")
                within = _CLASSES[name.removeprefix("NOT_")]
                spans += _complement(within) if name.startswith("NOT_") else within
        return self._read(spans, flags, negated=negated)

    def _read(self, spans: Sequence[_Range], flags: int, *, negated: bool) -> list[_Step]:
        if flags & re.IGNORECASE:
            spans = [*spans, *_other_case(spans)]
        spans = _complement(spans) if negated else _complement(_complement(spans))
        key = tuple(spans)
        if key not in self._places:
            self._places[key] = len(self._ranges)
            self._ranges += spans
            if len(self._ranges) > _MOST_RANGES:
                raise _refused("too many sets")
        first = self._places[key]
        return [(_READ, first, first + len(spans))]

    def _begins(self, steps: Sequence[_Step]) -> tuple[int, ...]:
        """Return the bits of the bytes with which a match may begin. Nothing: it may be empty."""
        bits, seen, left = 0, set[int](), [0]
        while left:
            at = left.pop()
            op, first, second = steps[at]
            if at in seen:
                continue
            seen.add(at)
            if op == _MATCH:
                return ()
            if op == _READ:
                for low, high in self._ranges[first:second]:
                    bits |= sum(1 << byte for byte in range(low, min(high, 127) + 1))
                    bits |= ((1 << 128) - 1) << 128 if high > 127 else 0  # a skip must not end inside of a character
            else:
                left += [first, second] if op == _SPLIT else [at + 1]
        return tuple(bits >> place & 0xFFFFFFFF for place in range(0, 256, 32))


def _items(tree: parser.SubPattern) -> list[tuple[Any, Any]]:
    return tree.data


def _limit(steps: int) -> None:
    if steps >= _MOST_STEPS:
        raise _refused("pattern too large")


def _complement(spans: Iterable[_Range]) -> list[_Range]:
    """Return what isn't in the ranges, which may be in any order and overlap: sorted, and none touches another."""
    others: list[_Range] = []
    free = 0
    for low, high in sorted(spans):
        if low > free:
            others.append((free, low - 1))
        free = max(free, high + 1)
    return [*others, (free, _LAST_CHARACTER)] if free <= _LAST_CHARACTER else others


def _other_case(spans: Iterable[_Range]) -> list[_Range]:
    """Return the ASCII letters of the other case."""
    both = [(max(low, base), min(high, base + 25)) for low, high in spans for base in (ord("A"), ord("a"))]
    return [(low ^ 32, high ^ 32) for low, high in both if low <= high]


def _literal(tree: parser.SubPattern, flags: int) -> bytes:
    """Return the longest run of characters that every text with a match holds."""
    runs = [b""]
    for op, value in _items(tree):
        folded = flags & re.IGNORECASE and chr(value).isalpha() if op.name == "LITERAL" else False
        if op.name == "LITERAL" and not folded and not 0xD800 <= value < 0xE000:
            runs[-1] += chr(value).encode()
        else:
            runs.append(b"")
    return max(runs, key=len)[:_LITERAL_BYTES]
