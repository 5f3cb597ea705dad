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
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

import msgspec

from paddock.gateway.protocols.http1 import Fields, Response

from .page import Answer, Page

_LENGTH = struct.Struct("=I")
_MOST_META_BYTES = 64 << 10
_DRAFT = "draft-"
PIECE_BYTES = 64 << 10
_HELD_BYTES = 64 << 10


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


def key_of(url: str, name: str) -> str:
    return hashlib.sha256(msgspec.msgpack.encode((url, name))).hexdigest()


class Broken(Exception):
    """A file is unreadable before its end, and the reason."""


class CacheFull(Exception):
    """The cache can't keep a file, and the reason."""


class Copy:
    """An open entry. The caller closes it. `file` is at its first byte. A faulty entry leaves the `store`."""

    def __init__(self, store: PackageStore, entry: Entry, file: BinaryIO) -> None:
        self._store, self.entry, self._file = store, entry, file
        self.close = file.close

    def pieces(self) -> Iterator[bytes]:
        """Read the file in pieces. The last one comes when all have the right digest. Broken."""
        algorithm, _, digest = self.entry.digest.partition(":")
        hasher, left = hashlib.new(algorithm), self.entry.size
        while left:
            why = "what is in the cache is not what was written"
            try:
                data = self._file.read(PIECE_BYTES)
            except OSError as error:
                data, why = b"", f"the disk can't be read: {error.strerror}"
            hasher.update(data)
            left -= len(data)
            if not data or (not left and hasher.hexdigest() != digest):
                self._store.drop(self.entry.key)
                raise Broken(why)
            yield data


class Draft:
    """A filter that writes its stream to an unfinished file, which `end` makes an entry.

    It retains the last bytes until the whole has the right digest. `how` is the action of the cache, for the records.
    """

    lags = False

    def __init__(self, store: PackageStore, name: str, file: BinaryIO, entry: Entry) -> None:
        self._store, self._name, self._file, self._key = store, name, file, entry.key
        algorithm, _, self._digest = entry.digest.partition(":")
        self._hasher, self._held = hashlib.new(algorithm), bytearray()
        self.how = "not kept: it was cut off"

    def feed(self, data: bytes) -> bytes:
        self._hasher.update(data)
        try:
            if not self._file.closed:
                self._file.write(data)
        except OSError as error:
            self._fail(error)
        self._held += data
        passed = bytes(self._held[:-_HELD_BYTES])
        del self._held[: len(passed)]
        return passed

    def end(self) -> bytes:
        """Broken."""
        if self._hasher.hexdigest() != self._digest:
            raise Broken("the file is not the one that its page says: it has another digest")
        try:
            if not self._file.closed:
                self._file.flush()
                self._store.take(self._name, self._key)
                self._file.close()
                self.how = "kept"
        except OSError as error:
            self._fail(error)
        return bytes(self._held)

    def _fail(self, error: OSError) -> None:
        self.how = f"not kept: {_unwritable(error)}"
        self.discard()

    def discard(self) -> None:
        """Delete the file if it isn't an entry. Idempotent."""
        if not self._file.closed:
            self._store.drop(self._name)
            with suppress(OSError):
                self._file.close()


def _unwritable(error: OSError) -> str:
    return f"nothing can be written: {error.strerror}"


class PackageStore:
    """The entries and drafts, at most `most_bytes`, the latest used ones.

    `spare_bytes` of the disk stay free.

    It creates its directory, and is the only writer there.
    """

    def __init__(self, directory: Path, *, most_bytes: int, spare_bytes: int) -> None:
        self._directory, self._most, self._spare = directory, most_bytes, spare_bytes
        self.clock = time.time
        directory.mkdir(mode=0o700, exist_ok=True)
        self._sizes = self._found()
        self._drafts: dict[str, int] = {}

    def _found(self) -> OrderedDict[str, int]:
        found: list[tuple[int, str, int]] = []
        with os.scandir(self._directory) as entries:
            for entry in entries:
                if entry.name.startswith(_DRAFT):
                    os.unlink(entry.path)
                elif entry.is_file(follow_symlinks=False):
                    status = entry.stat(follow_symlinks=False)
                    found.append((status.st_mtime_ns, entry.name, status.st_size))
        return OrderedDict((name, size) for _, name, size in sorted(found))

    @property
    def total_bytes(self) -> int:
        return sum(self._sizes.values()) + sum(self._drafts.values())

    def find(self, url: str, name: str) -> Copy | None:
        """Find an entry, which counts as used now."""
        key = key_of(url, name)
        if key not in self._sizes:
            return None
        copy = self._opened(key)
        if copy is None:
            self.drop(key)
            return None
        self._sizes.move_to_end(key)
        with suppress(OSError):  # then the next gateway takes it for older than it is
            os.utime(self._directory / key)
        return copy

    def _opened(self, key: str) -> Copy | None:
        """Open an entry, or return None if this class didn't write it."""
        try:
            file = os.fdopen(os.open(self._directory / key, os.O_RDONLY | os.O_NOFOLLOW), "rb")
        except OSError:
            return None
        try:
            (length,) = _LENGTH.unpack(file.read(_LENGTH.size))
            entry = _entry(file.read(min(length, _MOST_META_BYTES)))
            if entry.key == key and os.fstat(file.fileno()).st_size == _LENGTH.size + length + entry.size:
                hashlib.new(entry.digest.partition(":")[0])
                return Copy(self, entry, file)
        except (OSError, ValueError, struct.error, msgspec.MsgspecError):
            pass
        file.close()
        return None

    def drop(self, name: str) -> None:
        """Delete an entry or a draft."""
        with suppress(OSError):  # it is gone, or the next gateway tries again
            os.unlink(self._directory / name)
        self._sizes.pop(name, None)
        self._drafts.pop(name, None)

    def take(self, draft: str, key: str) -> None:
        """Make a draft an entry."""
        os.rename(self._directory / draft, self._directory / key)
        self._sizes[key] = self._drafts.pop(draft)
        self._sizes.move_to_end(key)

    def begin(self, entry: Entry) -> Draft:
        """Begin an entry, with room made for it first. CacheFull."""
        meta = msgspec.msgpack.encode(entry)
        size = _LENGTH.size + len(meta) + entry.size
        if len(meta) > _MOST_META_BYTES or size > self._most // 4:
            raise CacheFull("it is too large for the cache")
        if sum(self._drafts.values()) + size > self._most:
            raise CacheFull("too much is fetched at once")
        excess = self.total_bytes + size - self._most
        while excess > 0:
            excess -= self._evict()
        name = _DRAFT + secrets.token_hex(8)
        try:
            file = os.fdopen(os.open(self._directory / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb")
            draft, self._drafts[name] = Draft(self, name, file, entry), size
            try:
                self._allocate(file.fileno(), size)
                file.write(_LENGTH.pack(len(meta)) + meta)
            except BaseException:
                draft.discard()
                raise
        except OSError as error:
            raise CacheFull(_unwritable(error)) from None
        return draft

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


def _free(fd: int) -> int:
    disk = os.fstatvfs(fd)
    return disk.f_bavail * disk.f_frsize


_entry = msgspec.msgpack.Decoder(Entry).decode

FRESH_SECONDS = 60.0
JUDGED_SECONDS = 600.0
_MOST_BYTES = 64 << 20
PERSONAL_FIELDS = frozenset({b"authorization", b"cookie", b"x-api-key", b"private-token"})
"""Fields that make an answer depend on the client. Without them the gateway sends its own fields."""
_MAX_AGE = re.compile(rb"\bmax-age=([0-9]{1,9})", re.IGNORECASE)
_NEVER_KEPT, _ASK = re.compile(rb"\b(private|no-store)\b", re.IGNORECASE), re.compile(rb"\bno-cache\b", re.IGNORECASE)


def is_for_one(response: Response) -> bool:
    """Tell whether an answer says that it is for one client only."""
    control = response.get(b"cache-control") or b""
    return _NEVER_KEPT.search(control) is not None or response.get(b"set-cookie") is not None


class Read(msgspec.Struct, frozen=True, kw_only=True):
    """A page as read.

    `content` is the digest of the body, of type `kind`, from the server at `address`. Times are in seconds since 1970.

    The page is fresh before `until`.
    """

    kind: str
    content: bytes
    etag: bytes | None
    checked_at: float
    answer: Answer
    address: str
    until: float = 0.0


def find_page(store: PackageStore, page: Page) -> Read | None:
    """Find a page in the cache, if it is recent enough: its cooldown goes on meanwhile."""
    copy = store.find(*_place(page))
    if copy is None:
        return None
    try:
        read = _decode(b"".join(copy.pieces()))
    except (Broken, msgspec.MsgspecError):  # or of another version
        return None
    finally:
        copy.close()
    age = store.clock() - read.checked_at
    if age < 0 or (page.rule.cooldown_days is not None and age > JUDGED_SECONDS):
        return None
    return read


def keep_page(store: PackageStore, page: Page, response: Response, read: Read) -> None:
    """Keep a page as `response` allows, if there is space."""
    control = response.get(b"cache-control") or b""
    if is_for_one(response) or len(read.answer.body) > _MOST_BYTES:
        return
    max_age = _MAX_AGE.search(control)
    seconds = 0.0 if _ASK.search(control) else min(FRESH_SECONDS, float(max_age[1]) if max_age else FRESH_SECONDS)
    content = _encode(msgspec.structs.replace(read, until=store.clock() + seconds))
    url, name = _place(page)
    digest = f"sha256:{hashlib.sha256(content).hexdigest()}"
    entry = Entry(url=url, digest=digest, size=len(content), address=read.address, fields=[], name=name)
    with suppress(CacheFull):
        draft = store.begin(entry)
        draft.feed(content)
        draft.end()


def _place(page: Page) -> tuple[str, str]:
    """Return the key of a page: all inputs of its filter, except the index's content and the time."""
    encoded = _encode(msgspec.structs.replace(page, now=0.0))
    return f"{page.scheme}://{page.host}:{page.port}{page.path}", f"page:{hashlib.sha256(encoded).hexdigest()}"


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Read).decode
