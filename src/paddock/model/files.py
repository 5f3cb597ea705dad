"""Files inside a sandbox, in the words of the guest agent. Don't trust their names."""

from __future__ import annotations

from enum import StrEnum

from .value import DatetimeField, Value

_PATH_MAX = 4096
"""The kernel's limit for a path. The guest agent can't have a longer one."""


class FileKind(StrEnum):
    """The kind of a file. `other` is a socket, a pipe or a device."""

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
    """A file inside. `path` is absolute. Bytes of it that aren't UTF-8 appear as surrogate escapes.

    `mode` holds the permission bits only. `modified_at` is in seconds since the epoch.

    Example:
        ```python
        info = sandbox.files.stat("/etc/passwd")
        print(info.name, info.kind, info.uid)  # passwd file 0
        ```
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
    modified = DatetimeField("modified_at")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.target is not None and len(self.target) > _PATH_MAX:
            raise ValueError(f"Expected `target` of length <= {_PATH_MAX}")

    @property
    def name(self) -> str:
        """The last part of `path`."""
        return self.path.rstrip("/").rpartition("/")[2] or "/"


class GrepMatch(_Named):
    """A line that matches. `line_number` counts from 1.

    Example:
        ```python
        (match,) = sandbox.files.grep("^root:", "/etc/passwd")
        print(match.line_number, match.line)  # 1 root:…
        ```
    """

    path: str
    line_number: int
    line: str


class FileChange(_Named):
    """A change of a file.

    `kind` is created, modified, removed, moved_from, moved_to, or overflow (events are missing: list the files again).

    Example:
        ```python
        with sandbox.files.watch(".") as changes:
            sandbox.exec("touch made")
            print(next(changes).kind)
        ```
    """

    path: str
    kind: str
