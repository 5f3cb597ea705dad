"""Writes one layer of an image over a tree: as its archive says, and never outside.

It opens each path beneath the tree, through no link. Whiteouts (`.wh.NAME`, `.wh..wh..opq`: OCI image specification,
layer.md) remove files of lower layers. It never makes devices.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator

from paddock.errors import OUT_OF, ImageInvalidError, PlatformError
from paddock.linux import openat2
from paddock.linux.descriptors import closing, write_all
from paddock.storage.pool.removal import clear, make_directory
from paddock.storage.pool.trees import DIRECTORY, NEW, names_in, open_to_all
from paddock.wire import tar
from paddock.wire.tar import shown

from ._source import Stream
from .limits import HEADER_BYTES, Budget

_CHUNK = 1 << 18
_PATH_BYTES = 4095
_HIGHEST_ID = 65535
_PATHS_BYTES = 256 << 20
_LATEST = 1 << 33  # seconds; more than file systems keep
_HIDES, _OPAQUE, _OTHERS = b".wh.", b".wh..wh..opq", b".wh..wh."
_PLACE = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW
_SET_IDS = stat.S_ISUID | stat.S_ISGID
_BAD_ATTRIBUTES = (b"trusted.", b"user.overlay.")  # with these an overlay hides and redirects
_NAMES = {
    errno.ELOOP: "leads through a symbolic link",
    errno.ENOTDIR: "leads through something that is not a directory",
    errno.ENOENT: "leads through a directory that is not there",
    errno.EXDEV: "leads outside",
    errno.ENAMETOOLONG: "is too long a name",
    errno.EMLINK: "has too many hard links",
    errno.EPERM: "is refused by the kernel",
    errno.EINVAL: "is refused by the kernel",
}

_NOTHING = tar.Entry(b"", b"", 0, 0, 0, 0, 0, b"", {})


class LayerWriter:
    """A writer of archives over the directory `root`.

    `base` is an offset for owners. None: all files get our own id.

    Use one object per layer: a layer's whiteouts don't hide its own files.
    """

    def __init__(self, root: int, base: int | None, budget: Budget) -> None:
        self._root, self._base, self._budget = root, base, budget
        self.devices, self.attributes = 0, set[str]()
        """The number of devices, and the attributes, that the tree doesn't get."""
        self._made: set[int] = set()  # hashes of paths: a path may have 4,095 bytes
        self._times: list[tuple[bytes, int]] = []
        self._times_bytes = 0
        self._parent: tuple[bytes, int] | None = None
        self._file, self._due, self._entry = -1, 0, _NOTHING

    def apply(self, stream: Stream) -> None:
        """Write the archive's files. After ImageInvalidError or ResourceExhaustedError the tree is incomplete."""
        reader = tar.Reader(most_bytes=HEADER_BYTES, most_records=HEADER_BYTES)
        try:
            while not reader.headers.complete and (data := stream.read(_CHUNK)):
                self._lay(reader.feed(data))
            reader.end()
            for path, mtime in self._times:
                self._set_time(path, mtime)
        except tar.TarError as error:
            raise ImageInvalidError(str(error)) from None
        finally:
            if self._file >= 0:
                os.close(self._file)
            self._forget_parent()

    def _lay(self, events: Iterator[tar.Entry | bytes]) -> None:
        try:
            for event in events:
                if isinstance(event, tar.Entry):
                    self._charge()
                    self._entry = event
                    self._add(event)
                elif self._file >= 0:
                    write_all(self._file, event)
                    self._due -= len(event)
                    if not self._due:
                        self._end_file()
        except OSError as error:
            if error.errno in OUT_OF or error.errno == errno.EIO:  # the disk's, not the image's
                raise
            why = _NAMES.get(error.errno or 0, error.strerror)
            raise ImageInvalidError(f"{shown(self._entry.name)} of the image {why}") from error

    def _add(self, entry: tar.Entry) -> None:
        path = _path(entry.name)
        above, _, name = path.rpartition(b"/")
        if any(part.startswith(_HIDES) for part in above.split(b"/")):
            raise ImageInvalidError(f"{shown(path)} lies in what hides something")
        if name.startswith(_HIDES):
            self._hide(entry, above, name)
        elif entry.kind in (tar.CHAR, tar.BLOCK_DEVICE):
            self.devices += 1
        elif path:
            self._make(entry, path, self._directory(above), name)
            self._note(path)

    def _make(self, entry: tar.Entry, path: bytes, parent: int, name: bytes) -> None:
        if entry.kind == tar.LINK:
            self._link(entry, path, parent, name)
            return
        if entry.kind == tar.DIRECTORY:
            make_directory(parent, name)
            with closing(os.open(name, DIRECTORY, dir_fd=parent)) as fd:
                self._attributes(entry, fd)
            self._times.append((path, entry.mtime))
            self._times_bytes += len(path)
            if self._times_bytes > _PATHS_BYTES:
                raise ImageInvalidError("the image has more directories than are taken of one")
            return
        self._remove(parent, name)  # of two entries the later holds
        if entry.kind == tar.SYMLINK:
            os.symlink(_checked(entry.target), name, dir_fd=parent)
            self._own(entry, name, parent)
        elif entry.kind == tar.FIFO:
            os.mkfifo(name, 0o600, dir_fd=parent)
            self._own(entry, name, parent)
            os.chmod(name, entry.mode & ~_SET_IDS, dir_fd=parent)
        else:
            self._file = os.open(name, NEW, 0o600, dir_fd=parent)
            self._due = entry.size
            if not entry.size:
                self._end_file()
            return
        os.utime(name, ns=_times(entry.mtime), dir_fd=parent, follow_symlinks=False)

    def _end_file(self) -> None:
        self._attributes(self._entry, self._file)
        os.utime(self._file, ns=_times(self._entry.mtime))
        fd, self._file = self._file, -1
        os.close(fd)

    def _link(self, entry: tar.Entry, path: bytes, parent: int, name: bytes) -> None:
        source = _path(entry.target)
        if source == path:
            raise ImageInvalidError(f"{shown(path)} is a hard link to itself")
        above, _, last = source.rpartition(b"/")
        # A separate descriptor: making space for the link may close the remembered one.
        with closing(self._open(above)) as place:
            if not last or stat.S_ISDIR(os.stat(last, dir_fd=place, follow_symlinks=False).st_mode):
                raise ImageInvalidError(f"{shown(path)} is a hard link to a directory")
            self._remove(parent, name)  # of two entries the later holds
            os.link(last, name, src_dir_fd=place, dst_dir_fd=parent, follow_symlinks=False)

    def _attributes(self, entry: tar.Entry, fd: int) -> None:
        """Set the attributes of a file or a directory: first the owner, which clears set-id bits, then the mode."""
        self._own(entry, fd)
        mode = entry.mode
        if self._base is None:
            # The owner of a set-user-id program isn't kept, and only we need access to directories.
            mode &= ~_SET_IDS
            if entry.kind == tar.DIRECTORY:
                mode |= stat.S_IRWXU
        for attribute, value in entry.xattrs.items():
            self._attribute(fd, attribute, value)
        os.fchmod(fd, mode)

    def _attribute(self, fd: int, name: bytes, value: bytes) -> None:
        if name.startswith(_BAD_ATTRIBUTES):
            raise ImageInvalidError(f"the image sets the attribute {shown(name)}, which rules an overlay")
        if name.startswith(b"user."):
            try:
                return os.setxattr(fd, name, value)
            except OSError as error:
                if error.errno not in (errno.EOPNOTSUPP, errno.ERANGE, errno.E2BIG, errno.EPERM):
                    raise
        self.attributes.add(name[:100].decode("utf-8", "backslashreplace"))

    def _own(self, entry: tar.Entry, what: int | bytes, parent: int | None = None) -> None:
        if not (0 <= entry.uid <= _HIGHEST_ID and 0 <= entry.gid <= _HIGHEST_ID):
            raise ImageInvalidError(
                f"{shown(entry.name)} of the image belongs to {entry.uid}:{entry.gid}",
                hint=f"in a sandbox there are the ids 0 to {_HIGHEST_ID}: build the image with others",
            )
        if self._base is not None:
            ids = self._base + entry.uid, self._base + entry.gid
            if isinstance(what, int):
                os.fchown(what, *ids)
            else:
                os.chown(what, *ids, dir_fd=parent, follow_symlinks=False)

    # -- whiteouts

    def _hide(self, entry: tar.Entry, above: bytes, name: bytes) -> None:
        if entry.kind not in (tar.FILE, tar.LINK):
            raise ImageInvalidError(f"{shown(entry.name)} hides something and is not a file")
        if name == _OPAQUE:
            if self._is_there(above):
                self._empty(above)
            return
        if name.startswith(_OTHERS):
            return  # what aufs kept for itself
        hidden = name.removeprefix(_HIDES)
        if hidden in (b"", b".", b".."):
            raise ImageInvalidError(f"{shown(entry.name)} hides nothing that has a name")
        if self._is_there(above):
            path = above + b"/" + hidden if above else hidden
            self._take(self._directory(above), hidden, path)

    def _empty(self, path: bytes) -> None:
        """Remove the files of lower layers in the directory, at any depth. This layer's own files stay."""
        waiting = [path]
        while waiting:
            at = waiting.pop()
            with closing(self._open(at, DIRECTORY)) as fd:
                for name in map(os.fsencode, names_in(fd)):
                    below = at + b"/" + name if at else name
                    if hash(below) not in self._made:
                        self._remove(fd, name)
                    elif stat.S_ISDIR(os.stat(name, dir_fd=fd, follow_symlinks=False).st_mode):
                        waiting.append(below)

    def _take(self, parent: int, name: bytes, path: bytes) -> None:
        if hash(path) not in self._made:
            self._remove(parent, name)
        elif stat.S_ISDIR(os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode):
            self._empty(path)

    def _remove(self, parent: int, name: bytes) -> None:
        self._forget_parent(keep=parent)
        try:
            clear(parent, os.fsdecode(name))
        except PlatformError as error:
            raise ImageInvalidError(f"{shown(name)} cannot be taken away: {error.message}") from error

    # -- places

    def _directory(self, path: bytes) -> int:
        """Return the directory at `path`, created with its parents if it is missing.

        It stays open until the next call.
        """
        if self._parent is not None and self._parent[0] == path:
            return self._parent[1]
        try:
            fd = self._open(path)
        except FileNotFoundError:
            self._make_way(path)
            fd = self._open(path)
        self._forget_parent()
        self._parent = path, fd
        return fd

    def _make_way(self, path: bytes) -> None:
        """Make the directories above a file that the archive names before them: root's, for all to read."""
        parts = path.split(b"/")
        for depth, name in enumerate(parts):
            with closing(self._open(b"/".join(parts[:depth]))) as fd:
                try:
                    os.mkdir(name, 0o755, dir_fd=fd)
                    open_to_all(os.fsdecode(name), fd)
                    if self._base is not None:
                        os.chown(name, self._base, self._base, dir_fd=fd, follow_symlinks=False)
                except FileExistsError:
                    pass

    def _is_there(self, path: bytes) -> bool:
        try:
            os.close(self._open(path))
        except (FileNotFoundError, NotADirectoryError):
            return False
        return True

    def _open(self, path: bytes, flags: int = _PLACE) -> int:
        return openat2.open_beneath(self._root, path or b".", flags, cross_mounts=False)

    def _note(self, path: bytes) -> None:
        """Note that this layer has brought `path`, and the directories above it."""
        while path and hash(path) not in self._made:
            self._made.add(hash(path))
            self._charge()
            path = path.rpartition(b"/")[0]

    def _charge(self) -> None:
        self._budget.entries -= 1
        if self._budget.entries < 0:
            raise ImageInvalidError("the image has more files than are taken of one")

    def _set_time(self, path: bytes, mtime: int) -> None:
        try:
            fd = self._open(path, DIRECTORY)
        except OSError:
            return  # a later entry has taken its place
        with closing(fd):
            os.utime(fd, ns=_times(mtime))

    def _forget_parent(self, keep: int = -1) -> None:
        if self._parent is not None and self._parent[1] != keep:
            os.close(self._parent[1])
            self._parent = None


def _path(name: bytes) -> bytes:
    """Return a relative path without `.`, or b"" for the top. Raises ImageInvalidError if it leads upwards."""
    parts = [part for part in _checked(name).split(b"/") if part not in (b"", b".")]
    if b".." in parts:
        raise ImageInvalidError(f"{shown(name)} of the image leads outside")
    return b"/".join(parts)


def _checked(name: bytes) -> bytes:
    if b"\0" in name or len(name) > _PATH_BYTES:
        raise ImageInvalidError(f"{shown(name)} is not a valid file name")
    return name


def _times(mtime: int) -> tuple[int, int]:
    mtime = max(0, min(mtime, _LATEST * 10**9))
    return mtime, mtime
