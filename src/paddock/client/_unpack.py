"""Extracts an archive that an attacker may have written into a new directory of the caller's.

It creates all files by descriptor inside a private directory, which has no symbolic link until the last moment. Then it
creates the links, and refuses the ones that lead out. At the end it renames the whole into place.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import tempfile
import threading
from collections.abc import Generator

from paddock.errors import AlreadyExistsError, GuestProtocolError, InvalidArgumentError, InvalidStateError
from paddock.linux.descriptors import closing, write_all
from paddock.wire import tar

from ._transfer import TransferReport

Parts = tuple[str, ...]

_HOPS = 40  # as the kernel: MAXSYMLINKS, include/linux/namei.h
_STEPS = 10_000_000
_BYTES = 32 << 20


class Links:
    """All symbolic links of one tree, with limits of memory and work, because an attacker may have chosen them.

    `a/../..` may be harmless or not, depending on the target of `a`. So this follows a link through the others like the
    kernel.
    """

    def __init__(self) -> None:
        self._targets: dict[Parts, str] = {}
        self._bytes = 0
        self._steps = 0

    def add(self, link: Parts, target: str) -> bool:
        """Add a link. False if there is one of that name."""
        if link in self._targets:
            return False
        self._bytes += sum(map(len, link)) + len(target)
        if self._bytes > _BYTES:
            raise GuestProtocolError("the sandbox sent more symbolic links than can be checked")
        self._targets[link] = target
        return True

    def items(self) -> tuple[tuple[Parts, str], ...]:
        return tuple(self._targets.items())

    def leads_out(self, link: Parts) -> bool:
        where = list(link[:-1])
        todo = [link[-1]]
        hops = 0
        while todo:
            self._steps += 1 + len(where) // 64  # the time for the lookup
            if self._steps > _STEPS:
                raise GuestProtocolError("the sandbox sent symbolic links that take too long to check")
            part = todo.pop()
            if part == "..":
                if not where:
                    return True
                where.pop()
            elif part not in ("", "."):
                where.append(part)
                target = self._targets.get(tuple(where))
                if target is not None:
                    hops += 1
                    if hops > _HOPS or not target or target.startswith("/"):
                        return True
                    where.pop()
                    names = target.split("/")
                    self._steps += len(names)
                    todo += reversed(names)
        return False


_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_METADATA_BYTES = 64 << 10
_MOST_RECORDS = 64
"""Most bytes of one extended header: a guest sends a path, a target, a size and a time.

A path has at most 4096 bytes.
"""
_MAX_DEPTH = 300
"""Deepest directory, deeper than a guest walks: this opens each parent for each entry, and deep trees are hard to
remove.
"""
_SKIPPED_BYTES = 16 << 20
"""Most bytes of names in the report."""

_LATEST_NS = (1 << 33) * 10**9
_KINDS = {tar.FILE: "file", tar.DIRECTORY: "directory", tar.SYMLINK: "symbolic link", tar.LINK: "hard link"}

_OF_THE_MACHINE = (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EROFS)
"""Errors that are not the archive's doing: they reach the caller as they are."""


class _Unsafe(Exception):
    """An unsafe entry, which the caller's choice leaves out or makes an error."""


class Unpacker:
    """`feed` until `complete` or the stream ends, `finish`, and `close` in any case. From any thread."""

    def __init__(
        self, destination: str | os.PathLike[str], *, max_bytes: int, max_files: int, skip_unsafe: bool
    ) -> None:
        self._destination = os.path.abspath(destination)
        parent, name = os.path.split(self._destination)
        if not os.path.isdir(parent):
            raise InvalidArgumentError(f"{parent!r} is not a directory", hint=f"mkdir -p {parent}")
        if os.path.lexists(self._destination) and not _is_empty_directory(self._destination):
            raise _occupied(self._destination)
        self._max_bytes, self._max_files, self._skip_unsafe = max_bytes, max_files, skip_unsafe
        self._tar = tar.Reader(most_bytes=_METADATA_BYTES, most_records=_MOST_RECORDS)
        self._entries = self._directories = self._bytes = self._skipped_bytes = 0
        self._skipped: list[str] = []
        self._links = Links()
        self._file: int | None = None
        self._entry: tar.Entry | None = None
        self._left = 0
        self._lock = threading.Lock()
        self._private: str | None = tempfile.mkdtemp(prefix=f".{name}.", dir=parent)
        self._root = os.open(self._private, _DIRECTORY)
        os.mkdir("umask", dir_fd=self._root)  # `os.umask` can't read it without a change that other threads notice
        self._mode = os.stat("umask", dir_fd=self._root).st_mode & 0o777
        """The most that files get here: the kernel has taken away what the caller's umask forbids."""
        os.rmdir("umask", dir_fd=self._root)
        self._parent: tuple[Parts, int] | None = None

    @property
    def complete(self) -> bool:
        """Whether the archive has ended."""
        return self._tar.headers.complete

    def feed(self, data: bytes) -> None:
        with self._lock:
            if self._private is None:
                raise InvalidStateError("the unpacker was closed")
            try:
                for event in self._tar.feed(data):
                    if isinstance(event, tar.Entry):
                        self._begin(event)
                    else:
                        self._write(event)
            except tar.TarError as error:
                raise GuestProtocolError(str(error)) from None
            self._count(0, 0)

    def finish(self) -> TransferReport:
        """Put the tree in place."""
        with self._lock:
            if self._private is None or not self.complete:
                raise GuestProtocolError("the archive ended in the middle")
            for parts, target in self._links.items():
                with self._unsafe(parts, "symbolic link"):
                    if self._links.leads_out(parts):
                        raise _Unsafe(f"leads out: {target[:200]!r}")
                    os.symlink(target, parts[-1], dir_fd=self._directory(parts[:-1]))
            os.fchmod(self._root, self._mode)
            try:
                os.rename(self._private, self._destination)
            except OSError:
                raise _occupied(self._destination) from None
            self._private = None
        return TransferReport(entries=self._entries, total_bytes=self._bytes, skipped=tuple(self._skipped))

    def close(self) -> None:
        """Remove an unfinished extraction. Idempotent."""
        with self._lock:
            self._end_file()
            if self._parent is not None:
                os.close(self._parent[1])
                self._parent = None
            if self._root >= 0:
                os.close(self._root)
                self._root = -1
            if self._private is not None:
                shutil.rmtree(self._private)
                self._private = None

    def _begin(self, entry: tar.Entry) -> None:
        self._end_file()
        self._count(1, entry.size)
        self._entry, self._left = entry, entry.size
        path, target = (text.decode("utf-8", "surrogateescape") for text in (entry.name, entry.target))
        with self._unsafe(path, _KINDS.get(entry.kind, "device, pipe or socket")):
            parts = _parts(path)
            match entry.kind:
                case tar.DIRECTORY:
                    if parts:
                        os.fchmod(self._directory(parts), entry.mode & self._mode | 0o700)
                case tar.FILE:
                    self._file = os.open(_last(parts), _NEW_FILE, 0o600, dir_fd=self._directory(parts[:-1]))
                    if not entry.size:
                        self._end_file()
                case tar.LINK:
                    self._hardlink(_parts(target), parts)
                case tar.SYMLINK:
                    _last(parts)
                    if not self._links.add(parts, target):
                        raise _Unsafe("appears twice")
                case _:
                    raise _Unsafe("is never made here")

    def _write(self, data: bytes) -> None:
        self._left -= len(data)
        if self._file is not None:
            write_all(self._file, data)
            if not self._left:
                self._end_file()

    def _end_file(self) -> None:
        file, self._file = self._file, None
        if file is not None and self._entry is not None:
            try:
                os.fchmod(file, self._entry.mode & self._mode)
                when = self._entry.mtime if 0 <= self._entry.mtime < _LATEST_NS else 0
                os.utime(file, ns=(when, when))
            finally:
                os.close(file)

    def _hardlink(self, source: Parts, parts: Parts) -> None:
        # Between two names of the private directory, which has only files and directories. The kernel refuses the
        # latter.
        name = _last(source)
        with closing(os.dup(self._directory(source[:-1], make=False))) as where:
            target_dir = self._directory(parts[:-1])
            os.link(name, _last(parts), src_dir_fd=where, dst_dir_fd=target_dir, follow_symlinks=False)

    def _directory(self, parts: Parts, *, make: bool = True) -> int:
        """Return a descriptor that is valid until the next call. Never through a link: O_NOFOLLOW at each name."""
        if self._parent is not None and self._parent[0] == parts:
            return self._parent[1]
        directory = os.dup(self._root)
        try:
            for part in parts:
                if make:
                    with contextlib.suppress(FileExistsError):
                        os.mkdir(part, 0o755, dir_fd=directory)
                        self._directories += 1
                below = os.open(part, _DIRECTORY, dir_fd=directory)
                os.close(directory)
                directory = below
        except BaseException:
            os.close(directory)
            raise
        if self._parent is not None:
            os.close(self._parent[1])
        self._parent = (parts, directory)
        return directory

    @contextlib.contextmanager
    def _unsafe(self, path: str | Parts, kind: str) -> Generator[None]:
        try:
            yield
        except (_Unsafe, OSError) as error:
            text = path if isinstance(path, str) else "/".join(path)
            why = error.strerror if isinstance(error, OSError) else error
            if isinstance(error, OSError) and error.errno in _OF_THE_MACHINE:
                raise
            if not self._skip_unsafe:
                raise GuestProtocolError(
                    f"the sandbox sent a {kind} {text[:200]!r} that was refused: {why}", hint="skip_unsafe=True"
                ) from None
            self._skipped_bytes += len(text)
            if self._skipped_bytes > _SKIPPED_BYTES:
                raise GuestProtocolError("the sandbox sent more unsafe entries than can be reported") from None
            self._skipped.append(text)

    def _count(self, entries: int, data: int) -> None:
        self._entries += entries
        self._bytes += data
        if max(self._entries, self._directories) > self._max_files:
            raise GuestProtocolError(f"the sandbox sent more than {self._max_files} entries", hint="max_files=")
        if self._bytes + self._tar.headers.spent > self._max_bytes + (64 << 10):
            raise GuestProtocolError(f"the sandbox sent more than {self._max_bytes} bytes", hint="max_bytes=")


def _parts(path: str) -> Parts:
    if path.startswith("/"):
        raise _Unsafe("its path is absolute")
    if "\0" in path:
        raise _Unsafe("its path holds NUL")
    if len(path) > 4096:
        raise _Unsafe("its path is longer than any path")
    parts = tuple(part for part in path.split("/") if part not in ("", "."))
    if ".." in parts:
        raise _Unsafe("its path leads upwards")
    if len(parts) > _MAX_DEPTH:
        raise _Unsafe(f"it lies more than {_MAX_DEPTH} directories deep")
    return parts


def _last(parts: Parts) -> str:
    if not parts:
        raise _Unsafe("it takes the place of the directory itself")
    return parts[-1]


def _is_empty_directory(path: str) -> bool:
    return os.path.isdir(path) and not os.path.islink(path) and not os.listdir(path)


def _occupied(path: str) -> AlreadyExistsError:
    return AlreadyExistsError(f"{path!r} is there already and is not an empty directory", hint="name a new directory")
