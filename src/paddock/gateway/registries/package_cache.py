"""Keep files and pages of registries for the next sandbox: see docs/design/package-cache.md.

Files are found by their URL and by the digest that a page said. Every request was authorized before it comes here.
The last bytes of a file leave only when its digest is right. On the disk an entry is whole or absent. Pages are kept
as they were read, for the next request under the same rule.
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
from typing import TYPE_CHECKING, Protocol

import msgspec

from paddock.gateway.protocols.http1 import CONDITIONS, Fields, Request, Response
from paddock.gateway.proxy.stream import Lost
from paddock.gateway.rules.authorization import AuthorizedRequest

from .page import Page
from .protocols import Answer

if TYPE_CHECKING:
    from paddock.gateway.proxy.connection import Connection
    from paddock.gateway.proxy.relay import Relay

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

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class Draft:
    """A file that is being written. `keep` or `discard` ends it."""

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
        """Make an entry of it: all of it is there, and has the right digest. OSError: then it is discarded."""
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
    """`most_bytes` of entries and drafts, those that were used last; `spare_bytes` of the disk stay free. The only
    writer of its directory, which it makes."""

    def __init__(
        self, directory: Path, *, most_bytes: int, spare_bytes: int, clock: Callable[[], float] = time.time
    ) -> None:
        """`clock` is the wall clock that the dates of pages are of."""
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


FRESH_SECONDS = 60.0
JUDGED_SECONDS = 600.0
_MOST_BYTES = 64 << 20
OF_SOMEBODY = frozenset({b"authorization", b"cookie", b"x-api-key", b"private-token"})
"""Fields by which an answer depends on who asks; without them it is asked for in the gateway's own words."""
_MAX_AGE = re.compile(rb"\bmax-age=([0-9]{1,9})", re.IGNORECASE)
_NEVER, _ASK = re.compile(rb"\b(private|no-store)\b", re.IGNORECASE), re.compile(rb"\bno-cache\b", re.IGNORECASE)


class Read(msgspec.Struct, frozen=True, kw_only=True):
    """What a page was, in seconds since 1970: `content` is the digest of what came, of type `kind`; `until` then it
    need not be asked for again."""

    kind: str
    content: bytes
    etag: bytes | None
    checked_at: float
    until: float
    answer: Answer


class Remembered(msgspec.Struct, frozen=True):
    read: Read
    body: bytes
    address: str


def find_page(store: PackageStore, page: Page) -> Remembered | None:
    """Find what was read of a page, if it still holds: a cooldown goes on while nobody looks."""
    copy = store.find(*_place(page))
    if copy is None:
        return None
    try:
        content = b"".join(_pieces(copy))
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
    return Remembered(read, content[end:], copy.entry.address)


def keep_page(store: PackageStore, page: Page, response: Response, read: Read, body: bytes, address: str) -> None:
    """Keep a page as `response` allows; where there is no room nothing is kept."""
    control = response.get(b"cache-control") or b""
    if _NEVER.search(control) or response.get(b"set-cookie") is not None or len(body) > _MOST_BYTES:
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
    except NoRoom:
        return
    try:
        draft.write(content)
    except OSError:
        return draft.discard()
    with suppress(OSError):
        draft.keep()


def _place(page: Page) -> tuple[str, str]:
    """All that decides what is seen of a page, but for what the index says and when."""
    asked = _encode(msgspec.structs.replace(page, now=0.0))
    return f"{page.scheme}://{page.host}:{page.port}{page.path}", f"page:{hashlib.sha256(asked).hexdigest()}"


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Read).decode


_PIECE_BYTES = 128 << 10
_HELD_BYTES = 64 << 10
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}|sha384:[0-9a-f]{96}|sha512:[0-9a-f]{128}")
_PERSONAL = OF_SOMEBODY | CONDITIONS | {b"a-im"}
_KEPT_FIELDS = frozenset({b"content-type", b"etag", b"last-modified"})


class Broken(Exception):
    """A file can't be read to its end; why."""


def wanted(authorized: AuthorizedRequest, digest: str | None) -> tuple[str, str] | None:
    """The URL of a file, and the digest that its bytes have to have. None: the cache has no part in it. Whose answer
    could depend on who asks is nobody else's."""
    request, target = authorized.request, authorized.target
    if digest is None or not _DIGEST.fullmatch(digest) or authorized.verdict.mock or request.chunked or request.length:
        return None
    if authorized.depends_on_who_asks(_PERSONAL):
        return None
    return f"https://{target.host}:{target.port}{authorized.path}", digest


class Packaged:
    """One file for one who asks: read from the disk, or kept while it passes.

    `how` is what the cache did, for the records; `given` URL and digest of what the client had to its end. As a filter
    it holds the last bytes of a file back until all of it has the right digest.
    """

    def __init__(self, connection: Connection, store: PackageStore, wanted: tuple[str, str]) -> None:
        self._connection, self._store, self._wanted = connection, store, wanted
        self._draft: Draft | None = None
        self._held = bytearray()
        self.how: str | None = None
        self.given: tuple[str, str] | None = None

    def close(self) -> None:
        """The request is over."""
        draft, self._draft = self._draft, None
        if draft is not None:
            draft.discard()

    def gave(self) -> None:
        """The client has all of it."""
        self.given = self._wanted

    # -- from the disk -------------------------------------------------------------------------------------------------

    async def answer(self, request: Request, relay: Relay) -> bool | None:
        """Give out what there is already: whether the connection can go on. None: the upstream has to be asked."""
        connection, copy = self._connection, self._store.find(*self._wanted)
        if copy is None:
            return None
        try:
            if connection.target is None or not connection.network.may_dial(connection.target, copy.entry.address):
                return None
            self.how, connection.source = "hit", copy.entry.address
            connection.client.watch(True)
            return await self._read_out(copy, request, relay)
        finally:
            copy.close()
            connection.client.watch(False)
            connection.source = None

    async def _read_out(self, copy: Copy, request: Request, relay: Relay) -> bool | None:
        """None: it broke, and nothing was said yet."""
        client, entry, sent, buffer = self._connection.client, copy.entry, self._connection.client.sent, bytearray()
        response = whole(entry.fields, entry.size)
        stream = relay.returning(response)
        if response.length is None:
            response.chunked = request.minor > 0
        goes_on = request.keep_alive and (response.chunked or response.length is not None)
        relay.respond(response, keep_alive=goes_on)
        try:
            for piece in _pieces(copy):
                buffer += piece
                relay.send(stream.take(buffer), stream.last)
                await client.drain()
        except Broken as broken:
            self._store.drop(entry.key)
            if client.sent == sent:
                return None
            client.reset()
            raise Lost(f"the answer was cut off: {broken}") from None
        self.gave()
        return goes_on

    # -- from the upstream ---------------------------------------------------------------------------------------------

    def keep(self, response: Response, address: str) -> bool:
        """Whether an answer from `address` is to be kept while it passes."""
        why = _unfit(response)
        if why is None:
            fields = [field for field in response.fields if field[0].lower() in _KEPT_FIELDS]
            url, digest = self._wanted
            entry = Entry(url=url, digest=digest, size=response.length or 0, address=address, fields=fields)
            try:
                self._draft, self._hasher = self._store.begin(entry), entry.hasher()
                self._entry, self.how = entry, "not kept: it was cut off"
                return True
            except NoRoom as error:
                why = str(error)
        self.how = f"not kept: {why}"
        return False

    def feed(self, data: bytes) -> bytes:
        self._hasher.update(data)
        if self._draft is not None:
            try:
                self._draft.write(data)
            except OSError as error:
                self.how = f"not kept: nothing can be written: {error.strerror}"
                self.close()
        self._held += data
        free = max(0, len(self._held) - _HELD_BYTES)
        passed = bytes(self._held[:free])
        del self._held[:free]
        return passed

    def end(self) -> bytes:
        """Broken."""
        if not self._entry.is_of(self._hasher):
            raise Broken("the file is not the one that its page says: it has another digest")
        draft, self._draft = self._draft, None
        if draft is not None:
            try:
                draft.keep()
                self.how = "kept"
            except OSError as error:
                self.how = f"not kept: nothing can be written: {error.strerror}"
        return bytes(self._held)


def _pieces(copy: Copy) -> Iterator[bytes]:
    """Of a file; the last one comes when all have the right digest. Broken."""
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


def _unfit(response: Response) -> str | None:
    """Why an answer is not kept."""
    if response.status != 200:
        return f"the answer was {response.status}"
    if not response.length or response.chunked:
        return "the answer has no length"
    if (response.get(b"content-encoding") or b"identity").strip().lower() != b"identity":
        return "the answer is encoded"
    if _NEVER.search(response.get(b"cache-control") or b"") or response.get(b"set-cookie") is not None:
        return "the answer is for one only"
    return None


def whole(fields: Fields, size: int) -> Response:
    """Of an answer that is all there."""
    return Response(status=200, phrase=b"OK", fields=list(fields), length=size)
