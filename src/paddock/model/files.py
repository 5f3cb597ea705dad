"""Files inside a sandbox, as the guest describes them. Names are untrusted text."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import msgspec

Path = Annotated[str, msgspec.Meta(max_length=4096)]
"""Whoever sends a longer one does not know the kernel's PATH_MAX, or lies."""


class FileKind(StrEnum):
    FILE = "file"
    DIRECTORY = "directory"
    SYMLINK = "symlink"
    OTHER = "other"


class FileInfo(msgspec.Struct, frozen=True, kw_only=True):
    """`path` is absolute inside the sandbox; bytes that are not UTF-8 appear as surrogate escapes.
    `mode` holds the permission bits only; `modified_at` is seconds since the epoch."""

    path: Path
    kind: FileKind
    size_bytes: int = 0
    mode: int = 0
    uid: int = 0
    gid: int = 0
    modified_at: float = 0.0
    target: Path | None = None
    """Where a symbolic link points, unresolved."""

    @property
    def name(self) -> str:
        return self.path.rstrip("/").rpartition("/")[2] or "/"


class GrepMatch(msgspec.Struct, frozen=True, kw_only=True):
    path: Path
    line_number: int
    line: str


class FileChange(msgspec.Struct, frozen=True, kw_only=True):
    """`kind` is created, modified, removed, moved_from, moved_to, or overflow (events were lost: look again)."""

    path: Path
    kind: str
