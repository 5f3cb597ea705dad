"""Differences of texts by lines: Myers' greedy algorithm, which gives up on texts that have little in common.

An attacker writes them, so the work is bounded: past the bound, what lies between the first and the last line that
differ is replaced as a whole, which is a correct difference too.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

CONTEXT = 3
_MOST_EDITS = 1_000
Edit: TypeAlias = tuple[int, int, int, int]
"""Lines `a[i:j]` are replaced by `b[k:l]`."""


@dataclass(slots=True)
class Work:
    """How many steps may be taken yet, by all texts together: some seconds."""

    steps: int = 20_000_000


def edits(a: Sequence[bytes], b: Sequence[bytes], work: Work) -> list[Edit]:
    """In order, apart from each other."""
    start, end_a, end_b = 0, len(a), len(b)
    while start < end_a and start < end_b and a[start] == b[start]:
        start += 1
    while end_a > start and end_b > start and a[end_a - 1] == b[end_b - 1]:
        end_a, end_b = end_a - 1, end_b - 1
    if start == end_a and start == end_b:
        return []
    steps = _path(a[start:end_a], b[start:end_b], work) if start < end_a and start < end_b else None
    if steps is None:
        return [(start, end_a, start, end_b)]
    return [(i + start, j + start, k + start, m + start) for i, j, k, m in steps]


def _path(a: Sequence[bytes], b: Sequence[bytes], work: Work) -> list[Edit] | None:
    """The shortest script, of at most _MOST_EDITS single lines; None: there is none so short."""
    most = min(len(a) + len(b), _MOST_EDITS)
    middle = most + 1
    furthest = array("q", bytes(8 * (2 * most + 3)))  # by diagonal, x - y; `middle` is diagonal 0
    trace: list[array[int]] = []
    for d in range(most + 1):
        trace.append(furthest[middle - d - 1 : middle + d + 2])
        for k in range(-d, d + 1, 2):
            x = _next(furthest, middle, d, k)
            start, y = x, x - k
            while x < len(a) and y < len(b) and a[x] == b[y]:
                x, y = x + 1, y + 1
            furthest[middle + k] = x
            work.steps -= 1 + x - start
            if x >= len(a) and y >= len(b):
                return _script(trace, len(a), len(b))
        if work.steps < 0:
            return None
    return None


def _next(furthest: array[int], middle: int, d: int, k: int) -> int:
    """Where diagonal `k` begins in round `d`: by a line of b that is new, or one of a that is gone."""
    if _down(furthest, middle, d, k):
        return furthest[middle + k + 1]
    return furthest[middle + k - 1] + 1


def _down(furthest: array[int], middle: int, d: int, k: int) -> bool:
    return k == -d or (k != d and furthest[middle + k - 1] < furthest[middle + k + 1])


def _script(trace: list[array[int]], x: int, y: int) -> list[Edit]:
    """Walks the trace back, and joins single lines that touch."""
    found: list[Edit] = []
    for d in range(len(trace) - 1, 0, -1):
        furthest, middle, k = trace[d], d + 1, x - y
        down = _down(furthest, middle, d, k)
        before = k + 1 if down else k - 1
        at = furthest[middle + before]
        edit = (at, at, at - before, at - before + 1) if down else (at, at + 1, at - before, at - before)
        if found and found[-1][0] == edit[1] and found[-1][2] == edit[3]:
            last = found.pop()
            edit = (edit[0], last[1], edit[2], last[3])
        found.append(edit)
        x, y = at, at - before
    found.reverse()
    return found


def hunks(a: Sequence[bytes], b: Sequence[bytes], script: Sequence[Edit]) -> list[bytes]:
    """The lines of a unified difference, each with its end. Lines hold their own ends; the last may have none."""
    out: list[bytes] = []
    group: list[Edit] = []
    for edit in script:
        if group and edit[0] - group[-1][1] > 2 * CONTEXT:
            out += _hunk(a, b, group)
            group = []
        group.append(edit)
    if group:
        out += _hunk(a, b, group)
    return out


def _hunk(a: Sequence[bytes], b: Sequence[bytes], group: Sequence[Edit]) -> list[bytes]:
    first, last = group[0], group[-1]
    before, after = min(CONTEXT, first[0]), min(CONTEXT, len(a) - last[1])
    i, k = first[0] - before, first[2] - before
    j, m = last[1] + after, last[3] + after
    out = [b"@@ -%s +%s @@\n" % (_range(i, j), _range(k, m))]
    at = i
    for edit in group:
        out += [_line(b" ", line) for line in a[at : edit[0]]]
        out += [_line(b"-", line) for line in a[edit[0] : edit[1]]]
        out += [_line(b"+", line) for line in b[edit[2] : edit[3]]]
        at = edit[1]
    return out + [_line(b" ", line) for line in a[at:j]]


def _range(start: int, end: int) -> bytes:
    length = end - start
    # Of an empty range the line before it is named (POSIX, diff -u).
    return b"%d" % (start + 1) if length == 1 else b"%d,%d" % (start + 1 if length else start, length)


def _line(sign: bytes, line: bytes) -> bytes:
    return sign + line if line.endswith(b"\n") else sign + line + b"\n\\ No newline at end of file\n"
