"""A layer of the pool as the layer of an image: a tar archive, with what hides names below written as such archives do.

Layers of templates are ours, and nobody writes them any more: what is in one is only read, through no link.

Source: image-spec, layer.md ("Whiteouts"); overlayfs.rst (character device 0:0, `trusted.overlay.opaque`).
"""

from __future__ import annotations

import os
import stat
import tarfile
from collections.abc import Iterator, Mapping
from pathlib import PurePosixPath
from typing import IO

from paddock.errors import Unsupported
from paddock.model import Template
from paddock.storage._trees import DIRECTORY

_WHITEOUT = os.makedev(0, 0)
_OPAQUE = ("trusted.overlay.opaque", "user.overlay.opaque")  # as root, and in a user namespace
_HIDES, _HIDES_ALL = ".wh.", ".wh..wh..opq"
# Where engines mount and make files of their own before a container has its root: a link there would have them do it on
# the host (runc 1.1.5 makes /dev/stdin where a link at /dev leads).
_PLACES = frozenset({"dev", "etc", "proc", "sys", "tmp", ".paddock", ".paddock-host"})
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


def write_layer(root: int, out: IO[bytes], base: int | None, owners: Mapping[str, tuple[int, int]]) -> None:
    """The tree below the directory `root`. `base` is what its owners are stored above; None: all of it is ours, and
    root's inside, but what `owners` tells of absolute directories and all that is in them.
    Unsupported: an engine must not be given it."""
    with tarfile.open(fileobj=out, mode="w|", format=tarfile.PAX_FORMAT) as archive:
        _Writer(archive, base, owners).directory(root, PurePosixPath())


def owners(template: Template) -> dict[str, tuple[int, int]]:
    """Whose homes and working directory are: what stored owners would say."""
    homes = {user.home: (user.uid, user.gid) for user in template.users if user.home != "/"}
    default = template.user(None)
    return homes if default is None else {**homes, template.workdir: (default.uid, default.gid)}


class _Writer:
    def __init__(self, archive: tarfile.TarFile, base: int | None, owners: Mapping[str, tuple[int, int]]) -> None:
        self._archive, self._base = archive, base
        self._owners = {PurePosixPath(path).relative_to("/"): ids for path, ids in owners.items() if path != "/"}
        self._links: dict[tuple[int, int], str] = {}

    def directory(self, fd: int, path: PurePosixPath) -> None:
        self._add(os.fstat(fd), path)
        if _is_opaque(fd):
            self._archive.addfile(tarfile.TarInfo(str(path / _HIDES_ALL)))
        for name, info in _entries(fd):
            below = path / name
            if not path.parts and name in _PLACES and not stat.S_ISDIR(info.st_mode) and not _hides(info):
                raise Unsupported(
                    f"/{name} of this template is no directory, and a container engine mounts its own there",
                    hint="level='jail', 'gvisor' or 'microvm'",
                )
            if stat.S_ISDIR(info.st_mode):
                inner = os.open(name, DIRECTORY, dir_fd=fd)
                try:
                    self.directory(inner, below)
                finally:
                    os.close(inner)
            elif _hides(info):
                self._archive.addfile(tarfile.TarInfo(str(path / f"{_HIDES}{name}")))
            elif stat.S_ISLNK(info.st_mode):
                self._add(info, below, link=os.readlink(name, dir_fd=fd))
            elif stat.S_ISREG(info.st_mode):
                self._file(fd, name, info, below)

    def _file(self, fd: int, name: str, info: os.stat_result, path: PurePosixPath) -> None:
        known = self._links.setdefault((info.st_dev, info.st_ino), str(path)) if info.st_nlink > 1 else str(path)
        if known != str(path):
            member = self._member(info, path)
            member.type, member.linkname = tarfile.LNKTYPE, known
            self._archive.addfile(member)
            return
        with os.fdopen(os.open(name, _READ, dir_fd=fd), "rb") as file:
            self._add(os.fstat(file.fileno()), path, content=file)

    def _add(
        self, info: os.stat_result, path: PurePosixPath, *, link: str | None = None, content: IO[bytes] | None = None
    ) -> None:
        member = self._member(info, path)
        if link is not None:
            member.type, member.linkname = tarfile.SYMTYPE, link
        elif content is None:
            member.type = tarfile.DIRTYPE
        else:
            member.size = info.st_size
        self._archive.addfile(member, content)

    def _member(self, info: os.stat_result, path: PurePosixPath) -> tarfile.TarInfo:
        member = tarfile.TarInfo(str(path))
        member.mode = stat.S_IMODE(info.st_mode)
        member.mtime = int(info.st_mtime)
        if self._base is not None:
            member.uid, member.gid = info.st_uid - self._base, info.st_gid - self._base
        else:
            member.uid, member.gid = self._owner(path)
        return member

    def _owner(self, path: PurePosixPath) -> tuple[int, int]:
        """The nearest."""
        above = (path, *path.parents)
        return next((self._owners[place] for place in above if place in self._owners), (0, 0))


def _entries(fd: int) -> Iterator[tuple[str, os.stat_result]]:
    for name in sorted(os.listdir(fd)):
        yield name, os.stat(name, dir_fd=fd, follow_symlinks=False)


def _hides(info: os.stat_result) -> bool:
    return stat.S_ISCHR(info.st_mode) and info.st_rdev == _WHITEOUT


def _is_opaque(fd: int) -> bool:
    for name in _OPAQUE:
        try:
            if os.getxattr(fd, name) == b"y":
                return True
        except OSError:  # it has none, or we may not see it
            continue
    return False
