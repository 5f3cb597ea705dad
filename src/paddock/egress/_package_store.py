"""The package cache on the disk: entries that are there as a whole or not at all. See docs/design/package-cache.md."""

from __future__ import annotations

import hashlib
import os
import secrets
import struct
from collections import OrderedDict
from pathlib import Path
from typing import Protocol

import msgspec

from ._http1 import Fields

_LENGTH = struct.Struct("=I")
_MOST_META_BYTES = 64 << 10
_DRAFT = "draft-"


class Hasher(Protocol):
    def update(self, data: bytes, /) -> None: ...

    def hexdigest(self) -> str: ...


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """One file: what URL gave it, from which address, and what its bytes have to be.

    `digest` is `sha256:` (or 384, 512) and hexadecimal digits; `fields` those of the answer's head that are kept.
    """

    url: str
    digest: str
    size: int
    address: str
    fields: Fields
    name: str = ""
    """What it is found by beside its URL; empty: its digest."""

    @property
    def key(self) -> str:
        return key_of(self.url, self.name or self.digest)

    def hasher(self) -> Hasher:
        return hashlib.new(self.digest.partition(":")[0])

    def is_of(self, hasher: Hasher) -> bool:
        return hasher.hexdigest() == self.digest.partition(":")[2]


def key_of(url: str, name: str) -> str:
    return hashlib.sha256(msgspec.msgpack.encode((url, name))).hexdigest()


class NoRoom(Exception):
    """A file can't be kept; why."""


class Copy:
    """An entry, open; or a draft of one, which grows. To be closed."""

    def __init__(self, fd: int, entry: Entry, start: int) -> None:
        self._fd, self.entry, self._start = fd, entry, start

    def read(self, position: int, size: int) -> bytes:
        """OSError."""
        return os.pread(self._fd, size, self._start + position)

    def again(self) -> Copy:
        return Copy(os.dup(self._fd), self.entry, self._start)

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class Draft(Copy):
    """`written` bytes of the file are there. `keep` or `discard` ends it; reading goes on to work."""

    def __init__(self, store: PackageStore, name: str, fd: int, entry: Entry, start: int) -> None:
        super().__init__(fd, entry, start)
        self._store, self._name = store, name
        self.written = 0

    def write(self, data: bytes) -> None:
        """OSError."""
        view = memoryview(data)
        while view:
            done = os.pwrite(self._fd, view, self._start + self.written)
            self.written += done
            view = view[done:]

    def keep(self) -> None:
        """All of it is there, and is what it has to be. OSError: it is not kept."""
        self._store.take(self._name, self.entry, self._start + self.entry.size)

    def discard(self) -> None:
        self._store.forget(self._name, self._start + self.entry.size)


class PackageStore:
    """`most_bytes` of entries and drafts, those that were used last; `spare_bytes` of the disk stay free. The only
    writer of its directory, which it makes."""

    def __init__(self, directory: Path, *, most_bytes: int, spare_bytes: int) -> None:
        self._directory, self._most, self._spare = directory, most_bytes, spare_bytes
        self._drafted = 0
        directory.mkdir(mode=0o700, exist_ok=True)
        self._sizes = self._found()
        self._total = sum(self._sizes.values())

    def _found(self) -> OrderedDict[str, int]:
        found: list[tuple[int, str, int]] = []
        with os.scandir(self._directory) as entries:
            for one in entries:
                if one.name.startswith(_DRAFT):
                    os.unlink(one.path)
                elif one.is_file(follow_symlinks=False):
                    status = one.stat(follow_symlinks=False)
                    found.append((status.st_mtime_ns, one.name, status.st_size))
        return OrderedDict((name, size) for _, name, size in sorted(found))

    @property
    def total_bytes(self) -> int:
        return self._total + self._drafted

    def find(self, url: str, name: str) -> Copy | None:
        """It counts as used now."""
        key = key_of(url, name)
        if key not in self._sizes:
            return None
        try:
            fd = os.open(self._directory / key, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError:
            self._lose(key)
            return None
        copy = _opened(fd)
        if copy is None or (copy.entry.url, copy.entry.name or copy.entry.digest) != (url, name):
            os.close(fd)
            self.drop(key)
            return None
        self._sizes.move_to_end(key)
        try:
            os.utime(fd)
        except OSError:
            pass  # then the next gateway takes it for older than it is
        return copy

    def drop(self, key: str) -> None:
        """What is no good."""
        self._unlink(key)
        self._lose(key)

    def _unlink(self, name: str) -> None:
        try:
            os.unlink(self._directory / name)
        except OSError:
            pass  # it is gone, or the next gateway tries again

    def _lose(self, key: str) -> None:
        self._total -= self._sizes.pop(key, 0)

    def begin(self, entry: Entry) -> Draft:
        """Makes room for it first. NoRoom."""
        meta = msgspec.msgpack.encode(entry)
        start = _LENGTH.size + len(meta)
        size = start + entry.size
        if len(meta) > _MOST_META_BYTES or size > self._most // 4:
            raise NoRoom("it is too large for the cache")
        if self._drafted + size > self._most:
            raise NoRoom("too much is fetched at once")
        while self.total_bytes + size > self._most:
            self._evict()
        name = _DRAFT + secrets.token_hex(8)
        try:
            fd = os.open(self._directory / name, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise NoRoom(f"nothing can be written: {error.strerror}") from None
        try:
            self._allocate(fd, size)
            os.pwrite(fd, _LENGTH.pack(len(meta)) + meta, 0)
        except BaseException as error:
            os.close(fd)
            self._unlink(name)
            raise (
                NoRoom(f"nothing can be written: {error.strerror}") if isinstance(error, OSError) else error
            ) from None
        self._drafted += size
        return Draft(self, name, fd, entry, start)

    def _allocate(self, fd: int, size: int) -> None:
        """A disk that is full is known now, when all can still pass without a cache. What is evicted for it may take
        a while to become free: no more goes than is wanted."""
        evicted = 0
        while _free(fd) - size < self._spare:
            if not self._sizes or evicted >= size:
                raise NoRoom("the disk is too full for a cache")
            evicted += self._evict()
        os.posix_fallocate(fd, 0, size)

    def _evict(self) -> int:
        key, size = next(iter(self._sizes.items()))
        self.drop(key)
        return size

    # -- for drafts ----------------------------------------------------------------------------------------------------

    def take(self, name: str, entry: Entry, size: int) -> None:
        os.rename(self._directory / name, self._directory / entry.key)
        self._drafted -= size
        self._lose(entry.key)
        self._sizes[entry.key] = size
        self._total += size

    def forget(self, name: str, size: int) -> None:
        self._unlink(name)
        self._drafted -= size


def _free(fd: int) -> int:
    disk = os.fstatvfs(fd)
    return disk.f_bavail * disk.f_frsize


def _opened(fd: int) -> Copy | None:
    """None: it is not what this wrote."""
    try:
        (length,) = _LENGTH.unpack(os.pread(fd, _LENGTH.size, 0))
        if length > _MOST_META_BYTES:
            return None
        entry = _entry(os.pread(fd, length, _LENGTH.size))
        start = _LENGTH.size + length
        if os.fstat(fd).st_size != start + entry.size:
            return None
        entry.hasher()
    except (OSError, ValueError, struct.error, msgspec.MsgspecError):
        return None
    return Copy(fd, entry, start)


_entry = msgspec.msgpack.Decoder(Entry).decode
