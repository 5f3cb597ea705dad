"""Tar archives in and out, unpacked and packed inside, as the sandbox's own user. They run in a worker.

Names are relative and hold no `..`; devices, owners and set-id bits are not taken over. A symbolic link may say what
it likes, for no link is ever followed here: what comes later through one is refused. Names of users and groups are
never looked up: that would load libraries, which inside are the attacker's.
"""

from __future__ import annotations

import contextlib
import io
import os
import stat
import tarfile
from typing import IO

from . import _requests as requests
from ._config import AgentConfig
from ._faults import Fault, encode, show
from ._files import describe, make_parents
from ._frames import Json
from ._paths import locate, open_directory
from ._walk import MAX_DEPTH, Walk
from ._worker import Streams, Work

_PIECE = 256 * 1024


def upload(request: Json, config: AgentConfig) -> Work:
    name = requests.path(request, "path", config)
    place = locate(name, config)
    try:
        make_parents(place)
        with contextlib.suppress(FileExistsError):
            os.mkdir(place)
        base = os.open(place, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        os.close(base)
    except OSError as error:
        raise Fault.of(error, name) from None

    def work(streams: Streams) -> Json:
        base = os.open(place, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        with os.fdopen(streams.input, "rb", buffering=_PIECE) as file:
            try:
                with tarfile.open(fileobj=file, mode="r|", encoding="utf-8", errors="surrogateescape") as archive:
                    Unpacker(base).unpack(archive)
                while file.read(_PIECE):  # what pads the end of the archive
                    pass
            except tarfile.TarError as error:
                raise Fault("invalid_argument", f"not a tar archive: {error}") from None
            except OSError as error:
                raise Fault.of(error, name) from None
        return describe(place, name)

    return work


class Unpacker:
    def __init__(self, base: int) -> None:
        self._base = base
        self._modes: list[tuple[list[bytes], int, float]] = []

    def unpack(self, archive: tarfile.TarFile) -> None:
        for member in archive:
            archive.members = []  # pyright: ignore[reportAttributeAccessIssue]  # it would keep them all
            parts = _parts(member.name)
            if not parts:
                continue
            parent = self._enter(parts[:-1])
            try:
                self._member(archive, member, parent, parts)
            finally:
                os.close(parent)
        # Modes of directories at the end: one that is closed to its owner may come before what is in it.
        for parts, mode, modified in reversed(self._modes):
            directory = self._enter(parts)
            try:
                os.fchmod(directory, mode)
                os.utime(directory, (modified, modified))
            finally:
                os.close(directory)

    def _enter(self, parts: list[bytes]) -> int:
        """A descriptor of a directory below the base, made where it is missing. Never through a link."""
        fd = os.dup(self._base)
        for part in parts:
            try:
                inner = _directory(fd, part)
            finally:
                os.close(fd)
            fd = inner
        return fd

    def _member(self, archive: tarfile.TarFile, member: tarfile.TarInfo, parent: int, parts: list[bytes]) -> None:
        name = parts[-1]
        if member.isdir():
            os.close(_directory(parent, name))
            self._modes.append((parts, (member.mode & 0o755) | 0o700, member.mtime))
            return
        _make_room(parent, name)
        if member.issym():  # wherever it leads: it is kept, and nothing is ever written through it
            os.symlink(encode(member.linkname), name, dir_fd=parent)
        elif member.islnk():
            target = _parts(member.linkname)
            source = self._enter(target[:-1])
            try:
                os.link(target[-1], name, src_dir_fd=source, dst_dir_fd=parent, follow_symlinks=False)
            finally:
                os.close(source)
        elif member.isreg():
            content = archive.extractfile(member)
            _write_file(parent, name, member, content or io.BytesIO())
        else:
            raise Fault("invalid_argument", f"the archive holds a device or FIFO: {member.name!r}")


def _parts(name: str) -> list[bytes]:
    path = encode(name)
    parts = [part for part in path.split(b"/") if part not in (b"", b".")]
    if path.startswith(b"/") or b".." in parts:
        raise Fault("invalid_argument", f"the archive holds a name that leads outside: {name!r}")
    if len(parts) > MAX_DEPTH:
        raise Fault("file", "the archive is nested too deeply", name="ENAMETOOLONG")
    return parts


def _directory(parent: int, name: bytes) -> int:
    try:
        return open_directory(parent, name)
    except FileNotFoundError:
        os.mkdir(name, 0o755, dir_fd=parent)
        return open_directory(parent, name)


def _make_room(parent: int, name: bytes) -> None:
    with contextlib.suppress(FileNotFoundError):
        if stat.S_ISDIR(os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode):
            os.rmdir(name, dir_fd=parent)
        else:
            os.unlink(name, dir_fd=parent)


def _write_file(parent: int, name: bytes, member: tarfile.TarInfo, content: IO[bytes]) -> None:
    fd = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=parent)
    with os.fdopen(fd, "wb", buffering=0) as file:
        while data := content.read(_PIECE):
            view = memoryview(data)
            while view:
                view = view[file.write(view) :]
        os.fchmod(fd, (member.mode & 0o755) | 0o600)
        os.utime(fd, (member.mtime, member.mtime))


def download(request: Json, config: AgentConfig) -> Work:
    name = requests.path(request, "path", config)
    place = locate(name, config)
    try:
        status = os.stat(place)
    except OSError as error:
        raise Fault.of(error, name) from None

    def work(streams: Streams) -> Json:
        with (
            os.fdopen(streams.output, "wb", buffering=_PIECE) as file,
            tarfile.open(
                fileobj=file, mode="w|", format=tarfile.PAX_FORMAT, encoding="utf-8", errors="surrogateescape"
            ) as archive,
        ):
            links: dict[tuple[int, int], str] = {}
            if stat.S_ISDIR(status.st_mode):
                walk = Walk(place, b"", MAX_DEPTH)
                for where, known, found in walk:
                    _add(archive, where, show(known[1:]), found, links)
                return {"truncated": walk.truncated}
            _add(archive, place, show(os.path.basename(name.rstrip(b"/"))), status, links)
            return {"truncated": False}

    return work


def _add(
    archive: tarfile.TarFile, place: bytes, name: str, status: os.stat_result, links: dict[tuple[int, int], str]
) -> None:
    member = tarfile.TarInfo(name)
    member.mode = stat.S_IMODE(status.st_mode)
    member.uid, member.gid, member.mtime = status.st_uid, status.st_gid, int(status.st_mtime)
    if stat.S_ISDIR(status.st_mode):
        member.type = tarfile.DIRTYPE
        archive.addfile(member)
    elif stat.S_ISLNK(status.st_mode):
        with contextlib.suppress(OSError):
            member.type, member.linkname = tarfile.SYMTYPE, show(os.readlink(place))
            archive.addfile(member)
    elif stat.S_ISREG(status.st_mode):
        known = links.setdefault((status.st_dev, status.st_ino), name)
        if known != name:
            member.type, member.linkname = tarfile.LNKTYPE, known
            archive.addfile(member)
            return
        with contextlib.suppress(OSError):
            fd = os.open(place, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_NOFOLLOW | os.O_CLOEXEC)
            with os.fdopen(fd, "rb", buffering=_PIECE) as file:
                if stat.S_ISREG(os.fstat(fd).st_mode):
                    member.size = os.fstat(fd).st_size
                    archive.addfile(member, _Exactly(file))  # pyright: ignore[reportArgumentType]


class _Exactly:
    """A file that may shrink while it is read: the archive has promised its size, zeros stand for what is missing."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file

    def read(self, size: int) -> bytes:
        return self._file.read(size).ljust(size, b"\0")
