"""Differences in the words of git: what `git apply` takes (git-diff(1), "Generating patch text with -p")."""

from __future__ import annotations

import base64
import hashlib
import re
import zlib
from dataclasses import dataclass

from paddock.storage._lines import Work, edits, hunks

_BINARY_LOOK = 8000  # as git: a NUL among the first bytes
_PLAIN = re.compile(rb"[\x20-\x7e]*")
_ESCAPES = {0x07: b"a", 0x08: b"b", 0x09: b"t", 0x0A: b"n", 0x0B: b"v", 0x0C: b"f", 0x0D: b"r", 0x22: b'"', 0x5C: b"\\"}
_NO_BLOB = "0" * 40


@dataclass(frozen=True, slots=True)
class Side:
    """A file as git knows it: mode 100644, 100755 or 120000, and its content; of a link, where it points."""

    path: bytes
    mode: int
    content: bytes


@dataclass(frozen=True, slots=True)
class Piece:
    """The patch of one path. Lines are None of what is no text."""

    text: bytes
    insertions: int | None
    deletions: int | None


def piece(old: Side | None, new: Side | None, work: Work) -> Piece:
    """Not both None. What changes its kind is deleted and made anew, as git has it."""
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
    """As git writes names that are more than plain ASCII: in quotes, in octal (quote_c_style)."""
    if _PLAIN.fullmatch(path) and b'"' not in path and b"\\" not in path:
        return path
    escaped = (
        b"\\" + _ESCAPES[byte] if byte in _ESCAPES else bytes((byte,)) if 0x20 <= byte < 0x7F else b"\\%03o" % byte
        for byte in path
    )
    return b'"' + b"".join(escaped) + b'"'


def _label(path: bytes) -> bytes:
    name = quoted(path)
    # A blank in a name that is not quoted would be read as the beginning of a date.
    return name + b"\t" if name == path and b" " in path else name


def _lines(content: bytes) -> list[bytes]:
    """Only a line feed ends a line."""
    lines = content.split(b"\n")
    last = lines.pop()
    return [line + b"\n" for line in lines] + ([last] if last else [])


def _blob(side: Side | None) -> str:
    if side is None:
        return _NO_BLOB
    return hashlib.sha1(b"blob %d\0" % len(side.content) + side.content, usedforsecurity=False).hexdigest()


def _literal(content: bytes) -> bytes:
    """52 bytes of deflated content a line: its length as a letter, then base 85."""
    packed = zlib.compress(content)
    out = [b"literal %d\n" % len(content)]
    for at in range(0, len(packed), 52):
        part = packed[at : at + 52]
        size = len(part)
        letter = bytes((64 + size,)) if size <= 26 else bytes((96 + size - 26,))
        out.append(letter + base64.b85encode(part, pad=True) + b"\n")
    return b"".join(out)
