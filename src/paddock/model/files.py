"""Files inside a sandbox, as the guest describes them. Names are untrusted text."""

from __future__ import annotations

from enum import StrEnum

from .value import Moment, Value

_PATH_MAX = 4096
"""Whoever sends a longer path does not know the kernel's limit, or lies."""


class FileKind(StrEnum):
    FILE = "file"
    DIRECTORY = "directory"
    SYMLINK = "symlink"
    OTHER = "other"


class _Named(Value):
    path: str

    def __post_init__(self) -> None:
        """Run by decoders: guests say these."""
        if len(self.path) > _PATH_MAX:
            raise ValueError(f"Expected `path` of length <= {_PATH_MAX}")


class FileInfo(_Named):
    """`path` is absolute inside the sandbox; bytes that are not UTF-8 appear as surrogate escapes.
    `mode` holds the permission bits only; `modified_at` is seconds since the epoch."""

    path: str
    kind: FileKind
    size_bytes: int = 0
    mode: int = 0
    uid: int = 0
    gid: int = 0
    modified_at: float = 0.0
    target: str | None = None
    """Where a symbolic link points, unresolved."""
    modified = Moment("modified_at")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.target is not None and len(self.target) > _PATH_MAX:
            raise ValueError(f"Expected `target` of length <= {_PATH_MAX}")

    @property
    def name(self) -> str:
        return self.path.rstrip("/").rpartition("/")[2] or "/"


class GrepMatch(_Named):
    path: str
    line_number: int
    line: str


class FileChange(_Named):
    """`kind` is created, modified, removed, moved_from, moved_to, or overflow (events were lost: look again)."""

    path: str
    kind: str
