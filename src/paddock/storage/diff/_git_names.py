"""The names by which git finds repositories, and the files in a repository that hold data only.

An attacker may have written the index: `git checkout -- .` with an entry `.git/hooks/post-checkout` installs that hook
and runs it (seen with git 2.39), for git writes the paths in an index without checking them.
Format: Documentation/gitformat-index.txt.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable

# Files that git itself writes at a commit, and that name no program, no file elsewhere and no other configuration.
_DATA = re.compile(
    rb"(objects/([0-9a-f]{2}(/[0-9a-f]+)?|pack(/pack-[0-9a-f]+\.\w+)?|info|info/packs|info/commit-graph)?"
    rb"|(refs|logs)(/.+)?|(HEAD|ORIG_HEAD|FETCH_HEAD|MERGE_HEAD|AUTO_MERGE|COMMIT_EDITMSG|MERGE_MSG|index|packed-refs))"
)
# Unicode's Default_Ignorable_Code_Point. HFS+ and ext4 with casefold look names up without them.
_IGNORED = re.compile(
    "[\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e\u2060-\u206f\u3164"
    "\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufff8\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff]"
)
_DOT_GIT = re.compile(r"\.git|git~[0-9]+")
# The same in a whole path, for what `folded` cuts off each name: an index may have millions of names.
_IN_GIT = re.compile(rf"(?:\A|/)(?:{_DOT_GIT.pattern})[. ]*(?:[:\\][^/]*)?(?:/|\Z)")
_NOT_A_NAME = re.compile(rb"(?:\A|/)\.{0,2}(?:/|\Z)")


def folded(name: bytes) -> str:
    """Fold together all names that some file system takes for one: cases, ignored characters, NTFS streams."""
    return re.split(r"[:\\]", _without_case(name), maxsplit=1)[0].rstrip(". ")


def _without_case(name: bytes) -> str:
    return _IGNORED.sub("", name.decode(errors="surrogateescape")).casefold()


def is_dot_git(name: bytes) -> bool:
    return _DOT_GIT.fullmatch(folded(name)) is not None


def in_git(path: bytes) -> bool:
    return _IN_GIT.search(_without_case(path)) is not None


def is_repository(there: Callable[[str], bool]) -> bool:
    """Tell from the names in a directory whether git takes it for a repository (git's setup.c, is_git_directory)."""
    return there("head") and (there("commondir") or (there("objects") and there("refs")))


def is_data(path: bytes) -> bool:
    """Tell whether git's everyday commands write this path of a repository, and git reads it as data only."""
    return _DATA.fullmatch(path) is not None and not in_git(path)


def below_dot_git(path: bytes) -> bytes | None:
    """Return the part of `path` below its first `.git`, or None if that has another spelling."""
    parts = path.split(b"/")
    first = next(number for number, part in enumerate(parts) if is_dot_git(part))
    return b"/".join(parts[first + 1 :]) if parts[first] == b".git" else None


MOST_BYTES = 64 << 20
_STAT, _OID, _FLAGS = 40, 20, 2
_EXTENDED, _LENGTH = 0x4000, 0x0FFF
_KINDS = (0o100000, 0o120000, 0o160000)
_EXTENSIONS = (b"TREE", b"REUC")
"""The others name more files, or other places in this one."""


def names_only_work(data: bytes) -> bool:
    """Tell whether all entries lie in the working tree.

    The answer is False for formats other than version 2 and 3 with SHA-1.
    """
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
    if _NOT_A_NAME.search(name) or in_git(name):
        raise ValueError
    return at + (end - at + 8) // 8 * 8
