"""Reads a tree that an attacker may have written. It opens each path beneath its root, through no link and no mount."""

from __future__ import annotations

import errno
import hashlib
import os
import stat
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from io import BufferedReader

from paddock.linux import files, openat2
from paddock.linux.descriptors import closing
from paddock.model import FileKind

_LOOK = os.O_PATH | os.O_NOFOLLOW
_LIST = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK  # what was a file may have become a fifo
_GONE = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ELOOP})
_KINDS = {stat.S_IFREG: FileKind.FILE, stat.S_IFDIR: FileKind.DIRECTORY, stat.S_IFLNK: FileKind.SYMLINK}
_WHITEOUT = os.makedev(0, 0)
_ORIGIN = ("trusted.overlay.origin", "user.overlay.origin")  # as root, and in a user namespace


@dataclass(frozen=True, slots=True)
class Node:
    """The file at a path. `foreign`: another file system has a mount there. paddock never reads that."""

    kind: FileKind
    mode: int
    size: int
    uid: int = 0
    gid: int = 0
    inode: int = 0
    changed_ns: int = 0
    whiteout: bool = False
    foreign: bool = False

    @property
    def identity(self) -> tuple[int, int, int]:
        """Return a value that changes with every write or replacement of the file."""
        return self.inode, self.changed_ns, self.size


class HostileTree:
    """The files below the directory `fd`, which the caller owns.

    Paths are relative, without `.` and `..`. b"" is the root.

    `own`: a private copy. Then it changes modes that exclude us.
    """

    def __init__(self, fd: int, *, own: bool = False) -> None:
        self.fd = fd
        self._own = own

    def node(self, path: bytes) -> Node | None:
        """Look at `path`. None: there is nothing, or the way to it leads through something that isn't a directory."""
        try:
            fd = self._open(path, _LOOK)
        except OSError as error:
            if error.errno in _GONE:
                return None
            if error.errno == errno.EXDEV:
                return Node(FileKind.DIRECTORY, 0o755, 0, foreign=True)
            raise
        with closing(fd):
            return _node(os.fstat(fd))

    def birth_ns(self, path: bytes) -> int | None:
        """Return the birth time of the file.

        None: unknown, as for a file that an overlay has copied up (Documentation/filesystems/overlayfs.rst,
        trusted.overlay.origin).
        """
        with closing(self._open(path, _LOOK)) as fd:
            return None if _attribute(fd, _ORIGIN) is not None else files.birth_ns(fd)

    def names(self, path: bytes) -> list[bytes]:
        """List a directory, sorted. The list is empty if it can't read it, or it is a mount of another file system."""
        try:
            fd = self._open(path, _LIST)
        except OSError as error:
            if error.errno in _GONE or error.errno == errno.EXDEV:
                return []
            raise
        with closing(fd):
            return sorted(os.fsencode(name) for name in os.listdir(fd))

    def target(self, path: bytes) -> bytes:
        """Return where the symbolic link points."""
        with closing(self._open(path, _LOOK)) as fd:
            return os.fsencode(os.readlink("", dir_fd=fd))

    def attribute(self, path: bytes, names: tuple[str, ...]) -> bytes | None:
        """Return the first of these extended attributes that the directory at `path` has."""
        with closing(self._open(path, _LIST)) as fd:
            return _attribute(fd, names)

    @contextmanager
    def reading(self, path: bytes) -> Generator[BufferedReader]:
        """Open the regular file at `path`. OSError, also if it is none any more."""
        with closing(self._open(path, _READ)) as fd:
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                raise OSError(errno.EINVAL, "it is not a regular file any more", path)
            with open(fd, "rb", closefd=False) as file:
                yield file

    def digest(self, path: bytes) -> str:
        """Return the SHA-256 of the regular file at `path`."""
        with self.reading(path) as file:
            return hashlib.file_digest(file, "sha256").hexdigest()

    def _open(self, path: bytes, flags: int) -> int:
        try:
            return openat2.open_beneath(self.fd, path or b".", flags, cross_mounts=False)
        except PermissionError:
            if not self._own or not path:
                raise
        with closing(openat2.open_beneath(self.fd, path, _LOOK, cross_mounts=False)) as place:
            os.chmod(f"/proc/self/fd/{place}", 0o700)
        return openat2.open_beneath(self.fd, path, flags, cross_mounts=False)


def _attribute(fd: int, names: tuple[str, ...]) -> bytes | None:
    for name in names:
        try:
            return os.getxattr(f"/proc/self/fd/{fd}", name)  # fgetxattr(2) takes no O_PATH descriptor
        except OSError as error:
            if error.errno not in (errno.ENODATA, errno.EOPNOTSUPP, errno.EPERM):
                raise
    return None


def _node(info: os.stat_result) -> Node:
    return Node(
        kind=_KINDS.get(stat.S_IFMT(info.st_mode), FileKind.OTHER),
        mode=stat.S_IMODE(info.st_mode),
        size=info.st_size,
        uid=info.st_uid,
        gid=info.st_gid,
        inode=info.st_ino,
        changed_ns=info.st_ctime_ns,
        whiteout=stat.S_ISCHR(info.st_mode) and info.st_rdev == _WHITEOUT,
    )
