"""Files inside a sandbox, in the words of the guest agent. Don't trust their names."""

from __future__ import annotations

from enum import StrEnum

from .value import Value

_PATH_MAX = 4096
"""The kernel's limit for a path. The guest agent can't have a longer one."""


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
    """A file.

    `path` is absolute inside the sandbox. Bytes that aren't UTF-8 appear as surrogate escapes.

    `mode` is the permission bits. `modified_at` is in seconds since the epoch.
    """

    path: str
    kind: FileKind
    size_bytes: int = 0
    mode: int = 0
    uid: int = 0
    gid: int = 0
    modified_at: float = 0.0
    target: str | None = None
    """The target of a symbolic link, unresolved."""

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
    """A change in a directory.

    Kinds: created, modified, removed, moved_from, moved_to, or overflow.

    Overflow means that events are missing, so list the directory again.
    """

    path: str
    kind: str
