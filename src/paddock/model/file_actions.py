"""Actions on the files and ports of a sandbox."""

from __future__ import annotations

from .action import Action

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .files import FileInfo, GrepMatch
    from .streams import ByteReader, ByteStream, ByteWriter, ChangeStream


class ReadFile(Action["ByteReader"], tag="file.read", repeatable=True):
    sandbox: str
    path: str
    offset: int = 0
    length: int | None = None
    user: str | None = None


class WriteFile(Action["ByteWriter"], tag="file.write", repeatable=True):
    """Write a file.

    At the end of the stream it replaces the old one by a rename, so no reader sees a part of it.

    `append` writes in place. It creates missing parent directories.
    """

    sandbox: str
    path: str
    mode: int | None = None
    append: bool = False
    user: str | None = None


class StatFile(Action["FileInfo"], tag="file.stat", repeatable=True):
    """Return the properties of a file. For a symbolic link they are the link's own, unless `follow`."""

    sandbox: str
    path: str
    follow: bool = False
    user: str | None = None


class ListFiles(Action["tuple[FileInfo, ...]"], tag="file.list", repeatable=True):
    """Sorted by name. `depth=1` is the directory itself."""

    sandbox: str
    path: str
    depth: int = 1
    user: str | None = None


class MakeDirectory(Action["FileInfo"], tag="file.mkdir"):
    sandbox: str
    path: str
    mode: int | None = None
    parents: bool = True
    user: str | None = None


class MoveFile(Action["FileInfo"], tag="file.move"):
    sandbox: str
    source: str
    destination: str
    user: str | None = None


class CopyFile(Action["FileInfo"], tag="file.copy"):
    """Directories with everything in them."""

    sandbox: str
    source: str
    destination: str
    user: str | None = None


class RemoveFile(Action[None], tag="file.remove"):
    """A directory that is not empty needs `recursive`. `missing_ok` as in pathlib."""

    sandbox: str
    path: str
    recursive: bool = False
    missing_ok: bool = False
    user: str | None = None


class SetFileAttributes(Action["FileInfo"], tag="file.set"):
    """Change the mode or the owner of a file. None leaves a value as it is."""

    sandbox: str
    path: str
    mode: int | None = None
    uid: int | None = None
    gid: int | None = None
    user: str | None = None


class FindFiles(Action["tuple[FileInfo, ...]"], tag="file.find", repeatable=True):
    """Find the files below `path` whose names match the shell pattern `name`, at most `limit`."""

    sandbox: str
    path: str
    name: str = "*"
    limit: int = 10_000
    user: str | None = None


class GrepFiles(Action["tuple[GrepMatch, ...]"], tag="file.grep", repeatable=True):
    """Find the lines below `path` that match the regular expression `pattern`, in files named like `name`.

    It ignores binary files.
    """

    sandbox: str
    path: str
    pattern: str
    name: str = "*"
    limit: int = 1_000
    user: str | None = None


class WatchFiles(Action["ChangeStream"], tag="file.watch", repeatable=True):
    sandbox: str
    path: str
    recursive: bool = False
    user: str | None = None


class UploadTree(Action["ByteWriter"], tag="tree.upload", repeatable=True):
    """Extract a tar archive inside the sandbox, below `path`, as the sandbox's own user."""

    sandbox: str
    path: str
    user: str | None = None


class DownloadTree(Action["ByteReader"], tag="tree.download", repeatable=True):
    """Return a tar archive of the files below `path`. An attacker may have made its content, so unpack it with care."""

    sandbox: str
    path: str
    user: str | None = None


class ConnectPort(Action["ByteStream"], tag="port.connect"):
    """Connect to a TCP port on the sandbox's own loopback."""

    sandbox: str
    port: int
