"""The names by which git finds repositories, and the files in a repository that hold data only."""

from __future__ import annotations

import re
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


def folded(name: bytes) -> str:
    """Fold together all names that some file system takes for one: cases, ignored characters, NTFS streams."""
    text = _IGNORED.sub("", name.decode(errors="surrogateescape")).casefold()
    return re.split(r"[:\\]", text, maxsplit=1)[0].rstrip(". ")


def is_dot_git(name: bytes) -> bool:
    return _DOT_GIT.fullmatch(folded(name)) is not None


def in_git(path: bytes) -> bool:
    return any(map(is_dot_git, path.split(b"/")))


def is_repository(there: Callable[[str], bool]) -> bool:
    """Tell from the names in a directory whether git takes it for a repository (git's setup.c, is_git_directory)."""
    return there("head") and (there("commondir") or (there("objects") and there("refs")))


def is_data(path: bytes) -> bool:
    """Tell whether git's everyday commands write this path of a repository, and git reads it as data only."""
    return _DATA.fullmatch(path) is not None and not in_git(path)


def below_dot_git(path: bytes) -> bytes | None:
    """Return the part of `path` below its first `.git`; None if that has another spelling."""
    parts = path.split(b"/")
    first = next(number for number, part in enumerate(parts) if is_dot_git(part))
    return b"/".join(parts[first + 1 :]) if parts[first] == b".git" else None
