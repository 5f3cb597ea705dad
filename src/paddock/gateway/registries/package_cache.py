"""Keeps files and pages of registries for the next sandbox: see docs/design/package-cache.md.

It finds files by their URL and by the digest on a page. The gateway has authorized every request before. It sends the
last bytes of a file only if the digest is right. On the disk an entry is whole or absent. It keeps pages unfiltered,
for the next request under the same rule.
"""

from __future__ import annotations

import hashlib
import os
import re
import secrets
import struct
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Protocol

import msgspec

from paddock.gateway.protocols.http1 import Fields, Response

from .page import Page
from .protocols import Answer

_LENGTH = struct.Struct("=I")
_MOST_META_BYTES = 64 << 10
_DRAFT = "draft-"


class Hasher(Protocol):
    def update(self, data: bytes, /) -> None: ...

    def hexdigest(self) -> str: ...


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """One file: its URL, the address of its server, and the required digest of its bytes.

    `digest` is `sha256:` (or 384, 512) and hexadecimal digits. `fields` are the kept ones of the answer's head.
    """

    url: str
    digest: str
    size: int
    address: str
    fields: Fields
    name: str = ""
    """The second part of its key, after the URL. Empty: its digest."""

    @property
    def key(self) -> str:
        return key_of(self.url, self.name or self.digest)

    def hasher(self) -> Hasher:
        return hashlib.new(self.digest.partition(":")[0])

    def is_of(self, hasher: Hasher) -> bool:
        return hasher.hexdigest() == self.digest.partition(":")[2]


def key_of(url: str, name: str) -> str:
    return hashlib.sha256(msgspec.msgpack.encode((url, name))).hexdigest()


class Broken(Exception):
    """A file is unreadable before its end, and the reason."""


class CacheFull(Exception):
    """The cache can't keep a file, and the reason."""


class Copy:
    """An open entry, or a growing draft of one. The caller closes it."""

    def __init__(self, fd: int, entry: Entry, start: int) -> None:
        self._fd, self.entry, self._start = fd, entry, start

    def read(self, position: int, size: int) -> bytes:
        """OSError."""
        return os.pread(self._fd, size, self._start + position)

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class Draft:
    """An unfinished file. `keep` or `discard` ends it."""

    def __init__(self, store: PackageStore, name: str, fd: int, entry: Entry, start: int) -> None:
        self._store, self._name, self._fd, self.entry = store, name, fd, entry
        self._at, self._size = start, start + entry.size

    def write(self, data: bytes) -> None:
        """OSError."""
        view = memoryview(data)
        while view:
            done = os.pwrite(self._fd, view, self._at)
            self._at += done
            view = view[done:]

    def keep(self) -> None:
        """Turn the complete and verified draft into an entry. Raises OSError, and then discards it."""
        try:
            self._store.take(self._name, self.entry, self._size)
        except OSError:
            self.discard()
            raise
        os.close(self._fd)

    def discard(self) -> None:
        self._store.forget(self._name, self._size)
        os.close(self._fd)


class PackageStore:
    """The entries and drafts, at most `most_bytes`, the latest used ones.

    `spare_bytes` of the disk stay free.

    It creates its directory, and is the only writer there.
    """

    def __init__(
        self, directory: Path, *, most_bytes: int, spare_bytes: int, clock: Callable[[], float] = time.time
    ) -> None:
        """Use `clock`, the wall clock that the dates of pages are of."""
        self._directory, self._most, self._spare, self.clock = directory, most_bytes, spare_bytes, clock
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
        """Find an entry, which counts as used now."""
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
        """Delete a faulty entry."""
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
        """Begin an entry, with room made for it first. CacheFull."""
        meta = msgspec.msgpack.encode(entry)
        start = _LENGTH.size + len(meta)
        size = start + entry.size
        if len(meta) > _MOST_META_BYTES or size > self._most // 4:
            raise CacheFull("it is too large for the cache")
        if self._drafted + size > self._most:
            raise CacheFull("too much is fetched at once")
        while self.total_bytes + size > self._most:
            self._evict()
        name = _DRAFT + secrets.token_hex(8)
        try:
            fd = os.open(self._directory / name, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise CacheFull(f"nothing can be written: {error.strerror}") from None
        try:
            self._allocate(fd, size)
            os.pwrite(fd, _LENGTH.pack(len(meta)) + meta, 0)
        except BaseException as error:
            os.close(fd)
            self._unlink(name)
            raise (
                CacheFull(f"nothing can be written: {error.strerror}") if isinstance(error, OSError) else error
            ) from None
        self._drafted += size
        return Draft(self, name, fd, entry, start)

    def _allocate(self, fd: int, size: int) -> None:
        """Reserve space, so that it detects a full disk while the file can still pass without a cache.

        The space of evicted entries may become free late. So it evicts no more than the needed size.
        """
        evicted = 0
        while _free(fd) - size < self._spare:
            if not self._sizes or evicted >= size:
                raise CacheFull("the disk is too full for a cache")
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
    """Open an entry, or return None if this class didn't write it."""
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


def pieces(copy: Copy) -> Iterator[bytes]:
    """Read a file in pieces. The last one comes when all have the right digest. Broken."""
    hasher, position = copy.entry.hasher(), 0
    while position < copy.entry.size:
        try:
            data = copy.read(position, _PIECE_BYTES)
        except OSError as error:
            raise Broken(f"the disk can't be read: {error.strerror}") from None
        hasher.update(data)
        position += len(data)
        if not data or (position >= copy.entry.size and not copy.entry.is_of(hasher)):
            raise Broken("what is in the cache is not what was written")
        yield data


_PIECE_BYTES = 128 << 10
FRESH_SECONDS = 60.0
JUDGED_SECONDS = 600.0
_MOST_BYTES = 64 << 20
OF_SOMEBODY = frozenset({b"authorization", b"cookie", b"x-api-key", b"private-token"})
"""Fields that make an answer depend on the client. Without them the gateway sends its own fields."""
_MAX_AGE = re.compile(rb"\bmax-age=([0-9]{1,9})", re.IGNORECASE)
NEVER_KEPT, _ASK = re.compile(rb"\b(private|no-store)\b", re.IGNORECASE), re.compile(rb"\bno-cache\b", re.IGNORECASE)


class Read(msgspec.Struct, frozen=True, kw_only=True):
    """A page as read.

    `content` is the digest of the body, of type `kind`. Times are in seconds since 1970.

    The page is fresh before `until`.
    """

    kind: str
    content: bytes
    etag: bytes | None
    checked_at: float
    until: float
    answer: Answer


class CachedPage(msgspec.Struct, frozen=True):
    read: Read
    body: bytes
    address: str


def find_page(store: PackageStore, page: Page) -> CachedPage | None:
    """Find a page in the cache, if it is recent enough: its cooldown goes on meanwhile."""
    copy = store.find(*_place(page))
    if copy is None:
        return None
    try:
        content = b"".join(pieces(copy))
        end = _LENGTH.size + _LENGTH.unpack_from(content)[0]
        read = _decode(content[_LENGTH.size : end])
    except (Broken, struct.error):
        store.drop(copy.entry.key)
        return None
    except msgspec.MsgspecError:
        return None  # of another version
    finally:
        copy.close()
    age = store.clock() - read.checked_at
    if age < 0 or (page.rule.cooldown_days is not None and age > JUDGED_SECONDS):
        return None
    return CachedPage(read, content[end:], copy.entry.address)


def keep_page(store: PackageStore, page: Page, response: Response, read: Read, body: bytes, address: str) -> None:
    """Keep a page as `response` allows, if there is space."""
    control = response.get(b"cache-control") or b""
    if NEVER_KEPT.search(control) or response.get(b"set-cookie") is not None or len(body) > _MOST_BYTES:
        return
    given = _MAX_AGE.search(control)
    seconds = 0.0 if _ASK.search(control) else min(FRESH_SECONDS, float(given[1]) if given else FRESH_SECONDS)
    meta = _encode(msgspec.structs.replace(read, until=store.clock() + seconds))
    url, name = _place(page)
    content = b"".join((_LENGTH.pack(len(meta)), meta, body))
    digest = f"sha256:{hashlib.sha256(content).hexdigest()}"
    entry = Entry(url=url, digest=digest, size=len(content), address=address, fields=[], name=name)
    try:
        draft = store.begin(entry)
    except CacheFull:
        return
    try:
        draft.write(content)
    except OSError:
        return draft.discard()
    with suppress(OSError):
        draft.keep()


def _place(page: Page) -> tuple[str, str]:
    """Return the key of a page: all inputs of its filter, except the index's content and the time."""
    asked = _encode(msgspec.structs.replace(page, now=0.0))
    return f"{page.scheme}://{page.host}:{page.port}{page.path}", f"page:{hashlib.sha256(asked).hexdigest()}"


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Read).decode
