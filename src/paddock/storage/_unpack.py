"""Unpacking an archive that nobody is trusted with: by descriptor, below one directory, through no link, no devices."""

from __future__ import annotations

import os
import shutil
import tarfile

from paddock.errors import PlatformError
from paddock.storage._trees import DIRECTORY

_HIGHEST_ID = 65535
_OPEN_DIRECTORIES = 64


def unpack_tar(source: int, root: int, base: int | None) -> None:
    """Unpacks the tar archive `source` into the directory `root`, both descriptors; owners are those in it plus `base`.

    PlatformError: a name or an id in it leads outside. Devices and extended attributes are left out.
    """
    with (
        open(source, "rb", closefd=False) as stream,
        tarfile.open(fileobj=stream, mode="r|") as archive,
        _Target(root, base) as target,
    ):
        times: list[tuple[str, float]] = []
        for member in archive:
            target.add(archive, member)
            if member.isdir():
                times.append((member.name, member.mtime))
        for name, mtime in reversed(times):
            target.set_time(name, mtime)


class _Target:
    """Where it is unpacked, with the directories of late held open."""

    def __init__(self, root: int, base: int | None) -> None:
        self._root = root
        self._base = base
        self._open: dict[tuple[str, ...], int] = {}

    def __enter__(self) -> _Target:
        return self

    def __exit__(self, *_: object) -> None:
        self._close_but(0)

    def add(self, archive: tarfile.TarFile, member: tarfile.TarInfo) -> None:
        self._close_but(_OPEN_DIRECTORIES)
        parts = _parts(member.name)
        if not parts:
            self._attributes(self._root, ".", member)
            return
        if member.ischr() or member.isblk():
            return
        parent, name = self._directory(parts[:-1]), parts[-1]
        if member.isdir():
            try:
                os.mkdir(name, 0o700, dir_fd=parent)
            except FileExistsError:
                os.close(os.open(name, DIRECTORY, dir_fd=parent))  # it is one, and no link to one
        elif member.issym():
            os.symlink(member.linkname, name, dir_fd=parent)
        elif member.islnk():
            source = _parts(member.linkname)
            if not source:
                raise PlatformError(f"the archive makes {member.name!r} a link to its top")
            os.link(source[-1], name, src_dir_fd=self._directory(source[:-1]), dst_dir_fd=parent, follow_symlinks=False)
            return
        elif member.isfifo():
            os.mkfifo(name, 0o600, dir_fd=parent)
        elif member.isreg():
            self._file(archive, member, parent, name)
        else:
            raise PlatformError(f"the archive holds {member.name!r} of type {member.type!r}")
        self._attributes(parent, name, member)

    def set_time(self, path: str, mtime: float) -> None:
        self._close_but(_OPEN_DIRECTORIES)
        parts = _parts(path)
        os.utime(self._directory(parts), (mtime, mtime))

    def _file(self, archive: tarfile.TarFile, member: tarfile.TarInfo, parent: int, name: str) -> None:
        content = archive.extractfile(member)
        assert content is not None
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        with os.fdopen(os.open(name, flags, 0o600, dir_fd=parent), "wb") as file:
            shutil.copyfileobj(content, file, 1 << 20)

    def _attributes(self, parent: int, name: str, member: tarfile.TarInfo) -> None:
        if self._base is not None:
            if not (0 <= member.uid <= _HIGHEST_ID and 0 <= member.gid <= _HIGHEST_ID):
                raise PlatformError(f"the archive gives {member.name!r} the owner {member.uid}:{member.gid}")
            uid, gid = self._base + member.uid, self._base + member.gid
            os.chown(name, uid, gid, dir_fd=parent, follow_symlinks=False)
        if not member.issym():
            os.chmod(name, member.mode & 0o7777, dir_fd=parent)
        os.utime(name, (member.mtime, member.mtime), dir_fd=parent, follow_symlinks=False)

    def _directory(self, parts: tuple[str, ...]) -> int:
        """The directory at `parts`, through no symbolic link."""
        if not parts:
            return self._root
        fd = self._open.get(parts)
        if fd is None:
            parent = self._directory(parts[:-1])
            fd = os.open(parts[-1], DIRECTORY, dir_fd=parent)
            self._open[parts] = fd
        return fd

    def _close_but(self, most: int) -> None:
        """Closes the oldest. Only between two members: a member holds up to two directories at once."""
        while len(self._open) > most:
            os.close(self._open.pop(next(iter(self._open))))


def _parts(path: str) -> tuple[str, ...]:
    parts = tuple(part for part in path.split("/") if part not in ("", "."))
    if ".." in parts:
        raise PlatformError(f"the archive names {path!r}, which leads outside")
    return parts
