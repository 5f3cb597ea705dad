"""Actions on the files and ports of a sandbox."""

from __future__ import annotations

from .action import FileAction, SandboxAction

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .files import FileInfo, GrepMatch
    from .streams import ByteReader, ByteStream, ByteWriter, ChangeStream


class ReadFile(FileAction["ByteReader"], tag="file.read", repeatable=True):
    offset: int = 0
    length: int | None = None
    user: str | None = None


class WriteFile(FileAction["ByteWriter"], tag="file.write", repeatable=True):
    """Write a file.

    At the end of the stream it replaces the old one by a rename, so no reader sees a part of it.

    `append` writes in place. It creates missing parent directories.
    """

    mode: int | None = None
    append: bool = False
    user: str | None = None


class StatFile(FileAction["FileInfo"], tag="file.stat", repeatable=True):
    """Return the properties of a file. For a symbolic link they are the link's own, unless `follow`."""

    follow: bool = False
    user: str | None = None


class ListFiles(FileAction["tuple[FileInfo, ...]"], tag="file.list", repeatable=True):
    """Sorted by name. `depth=1` is the directory itself."""

    depth: int = 1
    user: str | None = None


class MakeDirectory(FileAction["FileInfo"], tag="file.mkdir"):
    mode: int | None = None
    parents: bool = True
    user: str | None = None


class MoveFile(SandboxAction["FileInfo"], tag="file.move"):
    source: str
    destination: str
    user: str | None = None


class CopyFile(SandboxAction["FileInfo"], tag="file.copy"):
    """Directories with everything in them."""

    source: str
    destination: str
    user: str | None = None


class RemoveFile(FileAction[None], tag="file.remove"):
    """A directory that is not empty needs `recursive`. `missing_ok` as in pathlib."""

    recursive: bool = False
    missing_ok: bool = False
    user: str | None = None


class SetFileAttributes(FileAction["FileInfo"], tag="file.set"):
    """Change the mode or the owner of a file. None leaves a value as it is."""

    mode: int | None = None
    uid: int | None = None
    gid: int | None = None
    user: str | None = None


class FindFiles(FileAction["tuple[FileInfo, ...]"], tag="file.find", repeatable=True):
    """Find the files below `path` whose names match the shell pattern `name`, at most `limit`."""

    name: str = "*"
    limit: int = 10_000
    user: str | None = None


class GrepFiles(FileAction["tuple[GrepMatch, ...]"], tag="file.grep", repeatable=True):
    """Find the lines below `path` that match the regular expression `pattern`, in files named like `name`.

    It ignores binary files.
    """

    pattern: str
    name: str = "*"
    limit: int = 1_000
    user: str | None = None


class WatchFiles(FileAction["ChangeStream"], tag="file.watch", repeatable=True):
    recursive: bool = False
    user: str | None = None


class UploadTree(FileAction["ByteWriter"], tag="tree.upload", repeatable=True):
    """Extract a tar archive inside the sandbox, below `path`, as the sandbox's own user."""

    user: str | None = None


class DownloadTree(FileAction["ByteReader"], tag="tree.download", repeatable=True):
    """Return a tar archive of the files below `path`. An attacker may have made its content, so unpack it with care."""

    user: str | None = None


class ConnectPort(SandboxAction["ByteStream"], tag="port.connect"):
    """Connect to a TCP port on the sandbox's own loopback."""

    port: int
