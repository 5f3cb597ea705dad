"""Judging an index that an attacker may have written: git writes the paths in it without checking them.

`git checkout -- .` with an entry `.git/hooks/post-checkout` installs that hook and runs it (seen with git 2.39).
Format: Documentation/gitformat-index.txt.
"""

from __future__ import annotations

import struct

from paddock.storage._git_names import is_dot_git

MOST_BYTES = 64 << 20
_STAT, _OID, _FLAGS = 40, 20, 2
_EXTENDED, _LENGTH = 0x4000, 0x0FFF
_KINDS = (0o100000, 0o120000, 0o160000)
_EXTENSIONS = (b"TREE", b"REUC")
"""The others name more files, or other places in this one."""


def names_only_work(data: bytes) -> bool:
    """Tell whether all entries lie in the working tree. Other formats than version 2 and 3 with SHA-1 are refused."""
    try:
        signature, version, count = struct.unpack_from(">4sII", data)
        if signature != b"DIRC" or version not in (2, 3):
            return False
        at = 12
        for _ in range(count):
            at = _next(data, at, version)
        while at < len(data) - _OID:
            name, size = struct.unpack_from(">4sI", data, at)
            if name not in _EXTENSIONS:
                return False
            at += 8 + size
        return at == len(data) - _OID
    except (struct.error, ValueError):
        return False


def _next(data: bytes, at: int, version: int) -> int:
    """Return where the entry after the one at `at` begins. ValueError, struct.error."""
    (mode,) = struct.unpack_from(">I", data, at + 24)
    (flags,) = struct.unpack_from(">H", data, at + _STAT + _OID)
    start = at + _STAT + _OID + _FLAGS
    if flags & _EXTENDED:
        if version < 3:
            raise ValueError
        start += 2
    end = data.index(b"\0", start)
    name = data[start:end]
    if min(len(name), _LENGTH) != flags & _LENGTH or mode & 0o170000 not in _KINDS:
        raise ValueError
    if any(part in (b"", b".", b"..") or is_dot_git(part) for part in name.split(b"/")):
        raise ValueError
    return at + (end - at + 8) // 8 * 8
