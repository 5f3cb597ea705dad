"""A local directory as a stream of tar, in constant memory. Links are never followed."""

from __future__ import annotations

import os
import stat
import tarfile
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase

from paddock.errors import InvalidArgumentError, InvalidStateError

from ._transfer import TransferReport

_CHUNK = 1 << 20
_BLOCK = 512


class Packer:
    """Iterate over it once, then ask for the report."""

    def __init__(self, directory: str | os.PathLike[str], *, exclude: Sequence[str] = ()) -> None:
        self._directory = os.fspath(directory)
        self._exclude = exclude
        self._entries = self._bytes = 0
        self._skipped: list[str] = []
        if not os.path.isdir(self._directory):
            found = os.path.lexists(self._directory)
            why, hint = ("is not a directory", "files.write_from() takes a file") if found else ("does not exist", None)
            raise InvalidArgumentError(f"{self._directory!r} {why}", hint=hint)

    def report(self) -> TransferReport:
        return TransferReport(entries=self._entries, total_bytes=self._bytes, skipped=tuple(self._skipped))

    def __iter__(self) -> Iterator[bytes]:
        """Chunks of about a MiB, so that a tree of small files does not cost a step for each."""
        waiting = bytearray()
        for piece in self._pieces():
            waiting += piece
            if len(waiting) >= _CHUNK:
                yield bytes(waiting)
                waiting.clear()
        yield bytes(waiting) + bytes(2 * _BLOCK)

    def _pieces(self) -> Iterator[bytes]:
        for root, directories, files, descriptor in os.fwalk(self._directory, follow_symlinks=False):
            below = os.path.relpath(root, self._directory)
            prefix = "" if below == "." else f"{below}/"
            directories[:] = self._wanted(directories)
            for name in sorted(directories):
                status = os.stat(name, dir_fd=descriptor, follow_symlinks=False)
                yield self._header(prefix + name, status, descriptor, name)
            directories[:] = [
                name
                for name in directories
                if stat.S_ISDIR(os.stat(name, dir_fd=descriptor, follow_symlinks=False).st_mode)
            ]
            for name in self._wanted(files):
                yield from self._file(prefix + name, descriptor, name)

    def _wanted(self, names: list[str]) -> list[str]:
        return sorted(name for name in names if not any(fnmatchcase(name, pattern) for pattern in self._exclude))

    def _file(self, path: str, directory: int, name: str) -> Iterator[bytes]:
        status = os.stat(name, dir_fd=directory, follow_symlinks=False)
        if not stat.S_ISREG(status.st_mode):
            yield self._header(path, status, directory, name)
            return
        # O_NONBLOCK: it may have become a pipe since.
        file = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=directory)
        try:
            status = os.fstat(file)
            yield self._header(path, status, directory, name)
            if stat.S_ISREG(status.st_mode):
                yield from self._content(path, file, status.st_size)
        finally:
            os.close(file)

    def _content(self, path: str, file: int, size: int) -> Iterator[bytes]:
        left = size
        while left:
            data = os.read(file, min(left, _CHUNK))
            if not data:
                raise InvalidStateError(f"{path!r} became shorter while it was read")
            left -= len(data)
            self._bytes += len(data)
            yield data
        yield bytes(-size % _BLOCK)

    def _header(self, path: str, status: os.stat_result, directory: int, name: str) -> bytes:
        """Owners stay behind: the sandbox's user gets all of it."""
        entry = tarfile.TarInfo(path)
        entry.mode = stat.S_IMODE(status.st_mode) & 0o777
        entry.mtime = max(0, int(status.st_mtime))
        if stat.S_ISREG(status.st_mode):
            entry.size = status.st_size
        elif stat.S_ISDIR(status.st_mode):
            entry.type = tarfile.DIRTYPE
        elif stat.S_ISLNK(status.st_mode):
            entry.type = tarfile.SYMTYPE
            entry.linkname = os.readlink(name, dir_fd=directory)
        else:
            self._skipped.append(path)
            return b""
        self._entries += 1
        return entry.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape")
