"""What can be asked about the files and ports of a sandbox."""

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
    """Written beside and renamed into place when the stream ends, so that nobody sees half a file;
    `append` writes in place. Missing parent directories are made."""

    sandbox: str
    path: str
    mode: int | None = None
    append: bool = False
    user: str | None = None


class StatFile(Action["FileInfo"], tag="file.stat", repeatable=True):
    """Of the link itself, unless `follow`."""

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
    """None leaves a value as it is."""

    sandbox: str
    path: str
    mode: int | None = None
    uid: int | None = None
    gid: int | None = None
    user: str | None = None


class FindFiles(Action["tuple[FileInfo, ...]"], tag="file.find", repeatable=True):
    """Below `path`, names that match the shell pattern `name`; at most `limit`."""

    sandbox: str
    path: str
    name: str = "*"
    limit: int = 10_000
    user: str | None = None


class GrepFiles(Action["tuple[GrepMatch, ...]"], tag="file.grep", repeatable=True):
    """Lines below `path` that match the regular expression `pattern`, in files named like `name`.

    Binary files are passed over."""

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
    """The stream is a tar archive; it is unpacked inside the sandbox, below `path`, by the sandbox's own user."""

    sandbox: str
    path: str
    user: str | None = None


class DownloadTree(Action["ByteReader"], tag="tree.download", repeatable=True):
    """The stream is a tar archive of what is below `path`. It comes from an attacker: unpack it as such."""

    sandbox: str
    path: str
    user: str | None = None


class ConnectPort(Action["ByteStream"], tag="port.connect"):
    """To a TCP port on the sandbox's own loopback."""

    sandbox: str
    port: int
