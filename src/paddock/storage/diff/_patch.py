"""Differences in git's format, as input for `git apply` (git-diff(1), "Generating patch text with -p").

The greedy algorithm of Myers compares texts line by line. An attacker may write the texts, so the work has a limit.
Beyond it, the patch replaces everything between the first and the last different line, which is also correct.
"""

from __future__ import annotations

import base64
import hashlib
import re
import zlib
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

CONTEXT = 3
_MOST_EDITS = 1_000
Edit: TypeAlias = tuple[int, int, int, int]
"""A hunk: `b[k:l]` replaces lines `a[i:j]`."""


@dataclass(slots=True)
class Work:
    """A budget of steps for all texts together: some seconds."""

    steps: int = 20_000_000


def edits(a: Sequence[bytes], b: Sequence[bytes], work: Work) -> list[Edit]:
    """Return the edits that turn `a` into `b`, in order and apart from each other."""
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
    """Find the shortest script of at most _MOST_EDITS single lines. None: there is none so short."""
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
    """Return where diagonal `k` begins in round `d`: after an added line of `b` or a removed line of `a`."""
    if _down(furthest, middle, d, k):
        return furthest[middle + k + 1]
    return furthest[middle + k - 1] + 1


def _down(furthest: array[int], middle: int, d: int, k: int) -> bool:
    return k == -d or (k != d and furthest[middle + k - 1] < furthest[middle + k + 1])


def _script(trace: list[array[int]], x: int, y: int) -> list[Edit]:
    """Walk the trace back, and join single lines that touch."""
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
    """Return the lines of a unified difference, each with its end. The last line may have none."""
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
    # An empty range counts from the line before it (POSIX, diff -u).
    return b"%d" % (start + 1) if length == 1 else b"%d,%d" % (start + 1 if length else start, length)


def _line(sign: bytes, line: bytes) -> bytes:
    return sign + line if line.endswith(b"\n") else sign + line + b"\n\\ No newline at end of file\n"


_BINARY_LOOK = 8000  # as git: a NUL among the first bytes
_PLAIN = re.compile(rb"[\x20-\x7e]*")
_ESCAPES = {0x07: b"a", 0x08: b"b", 0x09: b"t", 0x0A: b"n", 0x0B: b"v", 0x0C: b"f", 0x0D: b"r", 0x22: b'"', 0x5C: b"\\"}
_NO_BLOB = "0" * 40


@dataclass(frozen=True, slots=True)
class Side:
    """A file as git knows it: mode 100644, 100755 or 120000, and its content. The content of a link is its target."""

    path: bytes
    mode: int
    content: bytes


@dataclass(frozen=True, slots=True)
class Piece:
    """The patch of one path. The numbers of lines are None if it isn't text."""

    text: bytes
    insertions: int | None
    deletions: int | None


def piece(old: Side | None, new: Side | None, work: Work) -> Piece:
    """Return the patch of one path, of which one side may be None. A change of kind is a deletion and a new file, as in
    git."""
    if old is not None and new is not None and (old.mode == 0o120000) != (new.mode == 0o120000):
        gone, come = piece(old, None, work), piece(None, new, work)
        return Piece(gone.text + come.text, come.insertions, gone.deletions)
    one, other = old or new, new or old
    assert one is not None
    assert other is not None
    head = [b"diff --git %s %s\n" % (quoted(b"a/" + one.path), quoted(b"b/" + other.path))]
    if old is None:
        head.append(b"new file mode %o\n" % other.mode)
    elif new is None:
        head.append(b"deleted file mode %o\n" % one.mode)
    elif old.mode != new.mode:
        head += [b"old mode %o\n" % old.mode, b"new mode %o\n" % new.mode]
    before, after = old.content if old else b"", new.content if new else b""
    if old and new and old.path != new.path:
        assert before == after
        head += [
            b"similarity index 100%\n",
            b"rename from %s\n" % quoted(old.path),
            b"rename to %s\n" % quoted(new.path),
        ]
    if before == after and old and new:
        return Piece(b"".join(head), 0, 0)
    mode = b" %o" % old.mode if old and new and old.mode == new.mode else b""
    names = _blob(old), _blob(new)
    head.append(b"index %s..%s%s\n" % (*(name.encode() for name in names), mode))
    if is_binary(before) or is_binary(after):
        body = b"GIT binary patch\n" + _literal(after) + b"\n" + _literal(before) + b"\n"
        return Piece(b"".join(head) + body, None, None)
    a, b = _lines(before), _lines(after)
    script = edits(a, b, work)
    if script:
        head.append(b"--- %s\n" % (_label(b"a/" + one.path) if old else b"/dev/null"))
        head.append(b"+++ %s\n" % (_label(b"b/" + other.path) if new else b"/dev/null"))
    counts = sum(m - k for _, _, k, m in script), sum(j - i for i, j, _, _ in script)
    return Piece(b"".join([*head, *hunks(a, b, script)]), *counts)


def is_binary(content: bytes) -> bool:
    return b"\0" in content[:_BINARY_LOOK]


def quoted(path: bytes) -> bytes:
    """Quote names that are more than plain ASCII as git does: in quotes, in octal (quote_c_style)."""
    if _PLAIN.fullmatch(path) and b'"' not in path and b"\\" not in path:
        return path
    escaped = (
        b"\\" + _ESCAPES[byte] if byte in _ESCAPES else bytes((byte,)) if 0x20 <= byte < 0x7F else b"\\%03o" % byte
        for byte in path
    )
    return b'"' + b"".join(escaped) + b'"'


def _label(path: bytes) -> bytes:
    name = quoted(path)
    # After a blank in an unquoted name, `git apply` expects a date.
    return name + b"\t" if name == path and b" " in path else name


def _lines(content: bytes) -> list[bytes]:
    """Split at line feeds only."""
    lines = content.split(b"\n")
    last = lines.pop()
    return [line + b"\n" for line in lines] + ([last] if last else [])


def _blob(side: Side | None) -> str:
    if side is None:
        return _NO_BLOB
    return hashlib.sha1(b"blob %d\0" % len(side.content) + side.content, usedforsecurity=False).hexdigest()


def _literal(content: bytes) -> bytes:
    """Encode 52 bytes of deflated content a line: its length as a letter, then base 85."""
    packed = zlib.compress(content)
    out = [b"literal %d\n" % len(content)]
    for at in range(0, len(packed), 52):
        part = packed[at : at + 52]
        size = len(part)
        letter = bytes((64 + size,)) if size <= 26 else bytes((96 + size - 26,))
        out.append(letter + base64.b85encode(part, pad=True) + b"\n")
    return b"".join(out)
