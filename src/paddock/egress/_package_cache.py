"""Files and pages of registries that one sandbox has fetched, for the next one: see docs/design/package-cache.md.

Files are found by their URL and by the digest that a page said. Whoever asks here was judged already. What is given out
has the right digest when its last bytes are. On the disk entries are there as a whole or not at all. Pages are kept as
they were read, for whoever asks next by the same rule.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import re
import secrets
import struct
import time
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import msgspec

from ._http1 import BadMessage, Body, Fields, Request, Response, Stream, write_response
from ._judged import Judged
from ._refusal import Refused
from ._registry_page import Page
from ._registry_protocols import Answer
from ._upstream import Upstream
from ._wire import Lost, Wire

if TYPE_CHECKING:
    from ._connection import Connection

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


FRESH_SECONDS = 60.0
JUDGED_SECONDS = 600.0
_PAGE_LENGTH = struct.Struct("=I")
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
    judged_at: float
    until: float
    answer: Answer


class Remembered(msgspec.Struct, frozen=True):
    read: Read
    body: bytes
    address: str


class PageMemory:
    def __init__(self, store: PackageStore, clock: Callable[[], float] = time.time) -> None:
        self._store, self._clock = store, clock

    def find(self, page: Page, item: int, accept: str) -> Remembered | None:
        """What still holds: a cooldown goes on while nobody looks."""
        copy = self._store.find(*_place(page, item, accept))
        if copy is None:
            return None
        try:
            content = copy.read(0, copy.entry.size)
        except OSError:
            return None
        finally:
            copy.close()
        hasher = copy.entry.hasher()
        hasher.update(content)
        if not copy.entry.is_of(hasher) or len(content) < _PAGE_LENGTH.size:
            self._store.drop(copy.entry.key)
            return None
        end = _PAGE_LENGTH.size + _PAGE_LENGTH.unpack_from(content)[0]
        try:
            read = _decode(content[_PAGE_LENGTH.size : end])
        except msgspec.MsgspecError:
            return None  # of another version
        age = self._clock() - read.judged_at
        if age < 0 or (page.rule.cooldown_days is not None and age > JUDGED_SECONDS):
            return None
        return Remembered(read, content[end:], copy.entry.address)

    def is_fresh(self, found: Remembered) -> bool:
        return found.read.judged_at <= self._clock() <= found.read.until

    def keep(
        self, page: Page, item: int, accept: str, response: Response, read: Read, body: bytes, address: str
    ) -> None:
        """As `response` allows; where there is no room nothing is kept."""
        control = response.get(b"cache-control") or b""
        if _NEVER.search(control) or response.get(b"set-cookie") is not None or len(body) > _MOST_BYTES:
            return
        given = _MAX_AGE.search(control)
        seconds = 0.0 if _ASK.search(control) else min(FRESH_SECONDS, float(given[1]) if given else FRESH_SECONDS)
        meta = _encode(msgspec.structs.replace(read, until=self._clock() + seconds))
        url, name = _place(page, item, accept)
        content = b"".join((_PAGE_LENGTH.pack(len(meta)), meta, body))
        digest = f"sha256:{hashlib.sha256(content).hexdigest()}"
        entry = Entry(url=url, digest=digest, size=len(content), address=address, fields=[], name=name)
        try:
            draft = self._store.begin(entry)
        except NoRoom:
            return
        try:
            draft.write(content)
            draft.keep()
        except OSError:
            draft.discard()
        finally:
            draft.close()


def _place(page: Page, item: int, accept: str) -> tuple[str, str]:
    """All that decides what is seen of a page, but for what the index says and when."""
    asked = _encode((msgspec.structs.replace(page, now=0.0), item, accept))
    return f"{page.scheme}://{page.host}:{page.port}{page.path}", f"page:{hashlib.sha256(asked).hexdigest()}"


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Read).decode


_PIECE_BYTES = 128 << 10
_HELD_BYTES = 64 << 10
_STALLED_SECONDS = 120.0
_WAITING_SECONDS = 10.0
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}|sha384:[0-9a-f]{96}|sha512:[0-9a-f]{128}")
_PERSONAL = frozenset(
    {b"authorization", b"cookie", b"range", b"if-range", b"if-match", b"if-none-match", b"if-modified-since"}
    | {b"if-unmodified-since", b"a-im", b"x-api-key", b"private-token"}
)
_KEPT_FIELDS = frozenset({b"content-type", b"etag", b"last-modified"})
_PRIVATE = re.compile(rb"\b(private|no-store)\b", re.IGNORECASE)


class Broken(Exception):
    """A file can't be read to its end; why."""


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """A file, and what its bytes have to be."""

    url: str
    digest: str


def wanted(judged: Judged, digest: str | None) -> Wanted | None:
    """None: the cache has no part in it. Whose answer could depend on who asks is nobody else's."""
    request, target = judged.request, judged.target
    if digest is None or not _DIGEST.fullmatch(digest) or judged.verdict.mock or request.chunked or request.length:
        return None
    if judged.depends_on_who_asks(_PERSONAL):
        return None
    return Wanted(url=f"https://{target.host}:{target.port}{judged.path}", digest=digest)


class Reading(Protocol):
    """One client's way through a file, piece by piece. `how` is for the records."""

    entry: Entry
    how: str

    async def next(self) -> bytes:
        """Broken. Not to be asked for more than there is."""
        ...

    def reset(self) -> None:
        """The client has gone: who waits for the next piece is told so."""
        ...

    def close(self) -> None: ...


class PackageCache:
    """One for a gateway. Used within one event loop."""

    def __init__(self, store: PackageStore) -> None:
        self._store, self.pages = store, PageMemory(store)
        self._fetches: dict[str, _Fetch] = {}
        self._asking: dict[str, asyncio.Future[None]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def open(self, wanted: Wanted, allowed: Callable[[str], bool]) -> Reading | None:
        """`allowed`: whether it may come from an address. None: it is not here, for this one, who asks the upstream;
        others wait a moment for what it says, up to `fetch` or `asked`."""
        key = key_of(wanted.url, wanted.digest)
        first = self._asking.get(key)
        if first is not None:
            await asyncio.wait((first,), timeout=_WAITING_SECONDS)
        fetch = self._fetches.get(key)
        if fetch is not None:
            return fetch.reading("shared") if allowed(fetch.entry.address) else None
        copy = self._store.find(wanted.url, wanted.digest)
        if copy is None:
            self._asking.setdefault(key, asyncio.get_running_loop().create_future())
            return None
        if not allowed(copy.entry.address):
            copy.close()
            return None
        return _FromDisk(self._store, copy)

    def asked(self, wanted: Wanted) -> None:
        """There was an answer, or there will be none."""
        first = self._asking.pop(key_of(wanted.url, wanted.digest), None)
        if first is not None and not first.done():
            first.set_result(None)

    def fetch(
        self, wanted: Wanted, response: Response, server: Wire, address: str, ended: Callable[[bool], None]
    ) -> Reading:
        """From now on `server` is the cache's, until `ended` says so, and whether it can be used again. NoRoom: it is
        the caller's still."""
        if key_of(wanted.url, wanted.digest) in self._fetches:
            raise NoRoom("another fetches it, from elsewhere")
        why = _unfit(response)
        if why is not None:
            raise NoRoom(why)
        assert response.length is not None
        entry = Entry(
            url=wanted.url,
            digest=wanted.digest,
            size=response.length,
            address=address,
            fields=[field for field in response.fields if field[0].lower() in _KEPT_FIELDS],
        )
        fetch = self._fetches[entry.key] = _Fetch(self._store.begin(entry))
        reading = fetch.reading("kept")
        body = Body(response, to_the_end=True, extensions=True)
        task = fetch.task = asyncio.get_running_loop().create_task(fetch.run(body, server))
        self._tasks.add(task)

        def done(task: asyncio.Task[None]) -> None:
            self._tasks.discard(task)
            del self._fetches[entry.key]
            ended(fetch.end() and response.keep_alive)

        task.add_done_callback(done)
        return reading

    async def close(self) -> None:
        for task in list(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)


def _unfit(response: Response) -> str | None:
    """Why an answer is not kept."""
    if response.status != 200:
        return f"the answer was {response.status}"
    if not response.length or response.chunked:
        return "the answer has no length"
    if (response.get(b"content-encoding") or b"identity").strip().lower() != b"identity":
        return "the answer is encoded"
    if _PRIVATE.search(response.get(b"cache-control") or b"") or response.get(b"set-cookie") is not None:
        return "the answer is for one only"
    return None


class _FromDisk:
    how = "hit"

    def __init__(self, store: PackageStore, copy: Copy) -> None:
        self.entry = copy.entry
        self._store, self._copy, self._hasher = store, copy, copy.entry.hasher()
        self._position = 0

    async def next(self) -> bytes:
        data = b""
        try:
            data = self._copy.read(self._position, _PIECE_BYTES)
        except OSError as error:
            raise self._spoilt(f"the disk can't be read: {error.strerror}") from None
        self._hasher.update(data)
        self._position += len(data)
        if not data or (self._position >= self.entry.size and not self.entry.is_of(self._hasher)):
            raise self._spoilt("what is in the cache is not what was written")
        return data

    def _spoilt(self, why: str) -> Broken:
        self._store.drop(self.entry.key)
        return Broken(why)

    def reset(self) -> None: ...

    def close(self) -> None:
        self._copy.close()


class _Fetch:
    """From an upstream into a draft; whoever wants it reads behind."""

    task: asyncio.Task[None]

    def __init__(self, draft: Draft) -> None:
        self.draft, self.entry = draft, draft.entry
        self.error: str | None = None
        self._whole = False
        self._readers = 0
        self._waiting: set[asyncio.Future[None]] = set()

    @property
    def free(self) -> int:
        """So many bytes may be given out: all of them when they are the right ones."""
        return self.entry.size if self._whole else max(0, self.draft.written - _HELD_BYTES)

    def reading(self, how: str) -> Reading:
        self._readers += 1
        return _Behind(self, how)

    def left(self) -> None:
        self._readers -= 1
        if not self._readers and not self._whole and self.error is None:
            self.task.cancel()

    async def run(self, body: Body, server: Wire) -> None:
        draft, hasher = self.draft, self.entry.hasher()
        try:
            while True:
                piece = body.take(server.buffer)
                if piece:
                    hasher.update(piece)
                    draft.write(piece)
                    self.tell()
                if body.done:
                    break
                async with asyncio.timeout(_STALLED_SECONDS):
                    more = await server.more()
                if not more:
                    body.end()
        except (Lost, BadMessage) as error:
            self.error = f"the server broke off: {error}"
        except TimeoutError:
            self.error = "the server did not go on in time"
        except OSError as error:
            self.error = f"the cache can't be written: {error.strerror}"
        else:
            self._whole = self.entry.is_of(hasher)
            self.error = None if self._whole else "the file is not the one that its page says: it has another digest"

    def end(self) -> bool:
        """It is kept, or it never was; whether all of it came, and was right."""
        if self._whole:
            try:
                self.draft.keep()
            except OSError:
                self.draft.discard()
        else:
            self.error = self.error or "nobody fetches it any more"
            self.draft.discard()
        self.tell()
        self.draft.close()
        return self._whole

    def tell(self) -> None:
        waiting, self._waiting = self._waiting, set()
        for future in waiting:
            if not future.done():
                future.set_result(None)

    async def news(self) -> None:
        future = asyncio.get_running_loop().create_future()
        self._waiting.add(future)
        try:
            await future
        finally:
            self._waiting.discard(future)


class _Behind:
    def __init__(self, fetch: _Fetch, how: str) -> None:
        self.entry, self.how = fetch.entry, how
        self._fetch, self._copy, self._position = fetch, fetch.draft.again(), 0
        self._open, self._gone = True, False

    async def next(self) -> bytes:
        fetch = self._fetch
        while (there := fetch.free - self._position) <= 0:
            if self._gone or fetch.error is not None:
                raise Broken(fetch.error or "the client has gone")
            await fetch.news()
        try:
            data = self._copy.read(self._position, min(_PIECE_BYTES, there))
        except OSError as error:
            raise Broken(f"the disk can't be read: {error.strerror}") from None
        if not data:
            raise Broken("what was written is not there any more")
        self._position += len(data)
        return data

    def reset(self) -> None:
        self._gone = True
        self._fetch.tell()

    def close(self) -> None:
        if self._open:
            self._open = False
            self._copy.close()
            self._fetch.left()


class Packaged:
    """`how` is what the cache did, for the records; `given` URL and digest of what the client had to its end."""

    def __init__(self, connection: Connection, packages: PackageCache, wanted: Wanted) -> None:
        self._connection, self._room = connection, connection.room
        self._packages, self._wanted = packages, wanted
        self._asks, self._broken = False, ""
        self.how: str | None = None
        self.given: tuple[str, str] | None = None

    def close(self) -> None:
        """The request is over. Others who want the same need not wait for it any more."""
        if self._asks:
            self._asks = False
            self._packages.asked(self._wanted)

    async def answer(self, request: Request, returning: Callable[[Response], Stream]) -> bool | None:
        """Gives out what there is already: whether the connection can go on. None: the upstream has to be asked."""
        target = self._connection.target
        for _ in range(2):  # what breaks before any of it was given out is no answer
            reading = await self._packages.open(
                self._wanted, lambda address: target is not None and self._room.may_dial(target, address)
            )
            if reading is None:
                self._asks = True
                return None
            if (goes_on := await self._read_out(reading, request, returning)) is not None:
                return goes_on
        return None

    def keep(self, response: Response, upstream: Upstream) -> Reading | None:
        """Hands `upstream` over, if its answer is to be kept."""
        room = self._room
        revision = room.door.policy.revision

        def ended(reusable: bool) -> None:
            if reusable and not room.is_shut and room.door.policy.revision == revision:
                room.pool.give(upstream, tls=True)
            else:
                upstream.wire.close()

        try:
            return self._packages.fetch(self._wanted, response, upstream.wire, upstream.address, ended)
        except NoRoom as why:
            self.how = f"not kept: {why}"
            return None
        finally:
            self.close()

    async def give(self, reading: Reading, request: Request, returning: Callable[[Response], Stream]) -> bool:
        """What `keep` began: whether the connection can go on. Refused; Lost."""
        goes_on = await self._read_out(reading, request, returning)
        if goes_on is None:
            raise Refused(self._broken, status=502, rule="cache")
        return goes_on

    async def _read_out(
        self, reading: Reading, request: Request, returning: Callable[[Response], Stream]
    ) -> bool | None:
        """None: it broke, and nothing was said yet."""
        connection, wire, entry = self._connection, self._connection.wire, reading.entry
        self.how, connection.source, sent = reading.how, entry.address, wire.sent
        wire.guard(reading)
        wire.watch(True)
        try:
            buffer = bytearray(await reading.next())
            response = whole(entry.fields, entry.size)
            stream = returning(response)
            if response.length is None:
                response.chunked = request.minor > 0
            goes_on = request.keep_alive and (response.chunked or response.length is not None)
            stream.chunked = response.chunked
            out = write_response(response, keep_alive=goes_on, minor=request.minor)
            while True:
                out += stream.take(buffer)
                wire.write(out)
                await wire.drain()
                if stream.done:
                    self.given = self._wanted.url, self._wanted.digest
                    return goes_on
                out = bytearray()
                buffer += await reading.next()
        except Broken as broken:
            if wire.error is not None or wire.sent > sent:
                wire.reset()
                raise Lost(f"the answer was cut off: {broken}") from None
            self._broken = str(broken)
            return None
        finally:
            reading.close()
            wire.guard(None)
            wire.watch(False)
            connection.source = None


def whole(fields: Fields, size: int) -> Response:
    """Of an answer that is all there."""
    return Response(status=200, phrase=b"OK", fields=list(fields), length=size)
