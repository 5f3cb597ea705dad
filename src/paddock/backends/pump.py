"""One thread moves the bytes of every stream between sandboxes and clients, by splice(2) where it can."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import hashlib
import os
import select
import stat
import termios
import threading
from collections import deque
from collections.abc import Awaitable, Callable
from struct import unpack
from typing import Any, Protocol, TypeAlias

from paddock.linux.descriptors import tee
from paddock.linux.files import free
from paddock.model import ByteReader, ByteWriter
from paddock.wire import close_all

DIGESTED_BYTES = 64 << 20
"""A digest covers so much of a stream. The record says so where the stream is longer."""
_CHUNK = 1 << 20
_LOOKED_AT = 1 << 18
_MUCH = 256 * 1024
_LINGER_SECONDS = 1.0
_END_BYTES = 4096
_FREED_BYTES = 1 << 20
_STEPS = 2 * (_CHUNK // _LOOKED_AT + 1)
"""A read and a write each, for what a large pipe holds."""

Read: TypeAlias = Callable[[int], Awaitable[bytes]]
Write: TypeAlias = Callable[[bytes], Awaitable[None]]


class Filter(Protocol):
    """Takes values out of a stream, and holds back what may be the beginning of one."""

    def feed(self, data: bytes) -> bytes: ...

    def end(self) -> bytes: ...


def _never() -> bool:
    return False


async def _at_once() -> None: ...


class Meter:
    """Count what passes through one stream, digest its beginning, and keep its end with `keeps_end`.

    While `blocked` is true nothing passes: the stream waits for `unblock`, on the event loop. The pump's thread calls
    `blocked`.
    """

    def __init__(
        self,
        *,
        filter: Filter | None = None,
        digests: bool = True,
        keeps_end: bool = False,
        blocked: Callable[[], bool] = _never,
        unblock: Callable[[], Awaitable[None]] = _at_once,
    ) -> None:
        self._filter, self._digests, self._keeps_end = filter, digests, keeps_end
        self.blocked, self.unblock = blocked, unblock
        self._digest = hashlib.sha256()
        self.length = 0
        self.ending = b""

    @property
    def looks(self) -> bool:
        """Whether it has to see the next bytes."""
        beginning = self._digests and self.length < DIGESTED_BYTES
        return beginning or self._keeps_end or self._filter is not None

    def feed(self, data: bytes) -> bytes:
        """Return what may pass of these bytes; for b"", at the end, what was held back."""
        if self._filter is None:
            return data
        return self._filter.feed(data) if data else self._filter.end()

    def add(self, data: bytes | memoryview) -> None:
        if self._digests and self.length < DIGESTED_BYTES:
            self._digest.update(data[: DIGESTED_BYTES - self.length])
        self.length += len(data)
        if self._keeps_end:
            self.ending = (self.ending + bytes(data[-_END_BYTES:]))[-_END_BYTES:]

    def content(self) -> dict[str, object]:
        """For the record."""
        part = {"of_first": DIGESTED_BYTES} if self.length > DIGESTED_BYTES else {}
        return {"sha256": self._digest.hexdigest(), "length": self.length, **part}


class Journal:
    """Hold what was read of a pipe in a file: it owns `file`, whose position is its end. splice(2) moves bytes from the
    pipe into the file and the position in one step. So pipe and file together have all of the stream, even after a
    kill. `close`, or its last reference, closes the file.

    It first reads what an earlier process has left in the file.
    """

    def __init__(self, file: int) -> None:
        self._at = self._end = 0
        self.file = file
        self._end = os.lseek(file, 0, os.SEEK_CUR)
        self._is_lost = False
        self.done = 0
        """Bytes from the start that are no longer needed. It gives their room back piece by piece."""
        self._freed = 0

    @staticmethod
    def is_whole(file: int) -> bool:
        """Tell whether a killed process left all of the stream in the pipe and in `file`."""
        return os.fstat(file).st_size == os.lseek(file, 0, os.SEEK_CUR)

    @property
    def unread(self) -> int:
        """Bytes that the pipe does not hold any more."""
        return self._end - self._at

    def read(self, pipe: int, size: int) -> bytes:
        """At most `size` bytes. BlockingIOError: there is nothing now; b"" at the end."""
        if self.done - self._freed >= _FREED_BYTES:
            self._free()
        if not self.unread and not self._is_lost:
            try:
                self._end += os.splice(pipe, self.file, size, flags=os.SPLICE_F_NONBLOCK)
            except BlockingIOError:
                raise
            except OSError:
                self._give_up()
        return os.read(pipe, size) if self._is_lost else self.again(size)

    def skip(self, count: int) -> None:
        """Start to read after so many bytes: those before are not needed."""
        self._at = self.done = min(count, self._end)

    def _free(self) -> None:
        with contextlib.suppress(OSError):  # not every file system can
            free(self.file, self._freed, self.done - self._freed)
        self._freed = self.done

    def again(self, size: int) -> bytes:
        """At most `size` bytes of those that were not read of the file yet."""
        data = os.pread(self.file, min(size, self.unread), self._at)
        self._at += len(data)
        return data

    def add(self, data: bytes) -> None:
        """Keep what came in a frame, to be read later."""
        view = memoryview(data)
        try:
            while view and not self._is_lost and self.file >= 0:
                view = view[os.write(self.file, view) :]
        except OSError:
            self._give_up()
        self._at = self._end = self._end + len(data)

    def _give_up(self) -> None:
        """Give the journal up on a full disk: no later daemon can go on with the command, which doesn't fail
        for that."""
        os.ftruncate(self.file, 0)
        os.lseek(self.file, self._end + 1, os.SEEK_SET)
        self._is_lost = True

    def close(self) -> None:
        self._at = self._end
        if self.file >= 0:
            os.close(self.file)
            self.file = -1

    def __del__(self) -> None:
        self.close()


class Flow:
    """Carry one stream between a client's non-blocking descriptor and the sandbox's side: another such descriptor, or a
    function on the event loop that reads or writes frames. Use it once. The descriptors stay their owners', and it uses
    them until `pour` or `draw` returns."""

    def __init__(self, pump: Pump, client: int) -> None:
        self._pump, self._client = pump, client
        self._loop = asyncio.get_running_loop()
        self._done: asyncio.Future[None] = self._loop.create_future()
        self._asked: asyncio.Task[None] | None = None
        self.stopped = self._is_cut = False
        self.most: int | None = None
        """End after so many bytes. Set it before `pour`."""
        self.ends_at: int | None = None
        """End after so many bytes of the source, which holds them already: it waits for no others. Set it before
        `pour`."""
        self.meter = Meter()
        self.journal: Journal | None = None
        """The journal that a pipe's bytes go through, if any."""
        self.skip = 0
        """Bytes that the client has already. Set before `pour`."""
        self.is_exact = False
        """Move bytes only by splice(2): after a kill each is either here or there. Set it before `draw`, for a stream
        that is not filtered."""
        # The rest belongs to the pump's thread.
        self._source: int | Read = -1
        self._target: int | Write = -1
        self._splices = self._begun = self._over = self._ended = self._asks = False
        self._moved = 0
        self._unsent = memoryview(b"")
        self._peeked = b""
        self._copies: tuple[int, ...] = ()
        """A pipe for bytes that are inspected before they move."""
        self._waits_for = -1

    # on the event loop

    async def pour(self, source: int | Read) -> None:
        """Move all of `source` to the client. BrokenPipeError when the client has closed its end."""
        await self._run(source, self._client)

    async def draw(self, target: int | Write) -> None:
        """Move what the client writes to `target`. Raises BrokenPipeError when that is closed."""
        await self._run(self._client, target)

    def cut(self) -> None:
        """End at what the source holds now, even if another process has its other side."""
        self._is_cut = True
        if self._source != -1:
            self._pump.call(self._cut)

    def stop(self) -> None:
        """End now."""
        self.stopped = True
        if self._asked is not None:
            self._asked.cancel()
        self._pump.call(self._end, None)

    async def caught_up(self) -> None:
        """Return when the pump has moved what it could of what the source held."""
        for _ in range(_STEPS):
            looked: asyncio.Future[asyncio.Task[None] | None] = self._loop.create_future()
            self._pump.call(self._look, looked)
            await asyncio.wait((looked, self._done), return_when=asyncio.FIRST_COMPLETED)
            asked = looked.result() if looked.done() else None
            # A function that has bytes gives them in its first step, which is over by now. The pump moves them next.
            if asked is None or not asked.done():
                return

    def progress(self) -> object:
        """Return a value that stays the same only while the sandbox's side keeps the stream waiting."""
        return object() if self._waits_for == self._client else self._moved

    async def _run(self, source: int | Read, target: int | Write) -> None:
        self._source, self._target = source, target
        self._splices = _is_pipe(source) and _is_pipe(target)
        self._pump.call(self._begin)
        if self._is_cut:  # before it began
            self._pump.call(self._cut)
        try:
            await asyncio.shield(self._done)
        except asyncio.CancelledError:
            self.stop()
            await asyncio.wait((self._done,))
            if not self._done.cancelled():
                self._done.exception()
            raise
        finally:
            if self._asked is not None and not self._asked.done():
                await asyncio.wait((self._asked,))

    def _ask(self, function: Callable[..., Awaitable[Any]], then: Callable[[Any], None], *arguments: object) -> None:
        if not self.stopped:
            self._asked = self._loop.create_task(self._answer(function, then, arguments))

    async def _answer(
        self, function: Callable[..., Awaitable[Any]], then: Callable[[Any], None], arguments: tuple[object, ...]
    ) -> None:
        try:
            answer = await function(*arguments)
        except Exception as error:
            self._pump.call(self._end, error)
        else:
            self._pump.call(self._answered, then, answer)

    def _settle(self, error: BaseException | None) -> None:
        if self._done.done():
            return
        if error is None:
            self._done.set_result(None)
        else:
            self._done.set_exception(error)

    # in the pump's thread

    def step(self) -> None:
        """Move one piece."""
        self._pump.forget(self, self._waits_for)
        self._waits_for = -1
        if self._ended or self._asks or not self._begun:
            return
        try:
            try:
                self._move()
            except BlockingIOError:
                self._wait()
        except Exception as error:
            self._end(error)
        if not (self._ended or self._asks or self._waits_for >= 0):
            self._pump.again(self)

    def _begin(self) -> None:
        if not self._ended:
            self._begun = True
            self._pump.flows.add(self)
            self.step()

    def _move(self) -> None:
        if self._unsent:
            self._write()
        elif self._over:
            self._end(None)
        elif self.meter.blocked():
            self._request(self.meter.unblock, lambda _: None)
        elif (size := self._wanted()) <= 0:
            self._close()
        elif not isinstance(self._source, int):
            self._request(self._source, self._take, size)
        elif self._splices and self.is_exact and self.meter.looks:
            assert isinstance(self._target, int)
            self._peek(self._source, self._target, min(size, _LOOKED_AT))
        elif self._splices and not self.meter.looks and not self._behind:
            if self.journal is not None:  # so many had been moved without it
                self.meter.length, self.skip = self.meter.length + self.skip, 0
            assert isinstance(self._target, int)
            count = os.splice(self._source, self._target, size, flags=os.SPLICE_F_NONBLOCK)
            self._count(count)
            self.meter.length += count
            if not count:
                self._close()
        else:
            size = min(size, _LOOKED_AT)
            try:
                journal = self.journal
                self._take(os.read(self._source, size) if journal is None else journal.read(self._source, size))
            except ConnectionResetError:
                self._close()

    def _peek(self, source: int, target: int, size: int) -> None:
        """Look at what comes next, and move it as it is."""
        if not self._peeked:
            reading, writing = self._copies = self._copies or os.pipe2(os.O_CLOEXEC)
            self._peeked = os.read(reading, copied) if (copied := tee(source, writing, size)) else b""
        count = os.splice(source, target, len(self._peeked), flags=os.SPLICE_F_NONBLOCK) if self._peeked else 0
        self._count(count)
        self.meter.add(self._peeked[:count])
        self._peeked = self._peeked[count:]
        if not count:
            self._close()

    @property
    def _behind(self) -> int:
        return 0 if self.journal is None else self.journal.unread

    def _wanted(self) -> int:
        return min((_CHUNK, *(total - self._moved for total in (self.most, self.ends_at) if total is not None)))

    def _take(self, data: bytes) -> None:
        self._count(len(data))
        if data:
            self._unsent = memoryview(self.meter.feed(data))
        else:
            self._close()

    def _close(self) -> None:
        """Nothing more comes."""
        self._over = True
        self._unsent = memoryview(self.meter.feed(b""))

    def _write(self) -> None:
        if self.skip:
            had = min(self.skip, len(self._unsent))
            self.skip -= had
            self._written(had)
        elif isinstance(self._target, int):
            self._written(os.write(self._target, self._unsent))
        else:
            self._request(self._target, lambda _: self._written(len(self._unsent)), bytes(self._unsent))

    def _written(self, count: int) -> None:
        self.meter.add(self._unsent[:count])
        self._unsent = self._unsent[count:]

    def _count(self, count: int) -> None:
        grow(self._moved, count, self._source, self._target)
        self._moved += count

    def _wait(self) -> None:
        is_spliced = self._splices and (self.is_exact or not self.meter.looks)
        if self._unsent or (is_spliced and held(self._source)):
            end, mask = self._target, select.EPOLLOUT
        elif self.ends_at is not None:
            # Another reader has taken some of the bytes that it was to end with: don't wait for them.
            self._close()
            return
        else:
            end, mask = self._source, select.EPOLLIN
        assert isinstance(end, int)
        self._waits_for = end
        self._pump.wait(self, end, mask)

    def _request(
        self, function: Callable[..., Awaitable[Any]], then: Callable[[Any], None], *arguments: object
    ) -> None:
        self._asks = True
        self._pump.tell(self._loop, self._ask, function, then, *arguments)

    def _answered(self, then: Callable[[Any], None], answer: Any) -> None:
        if self._ended:
            return
        self._asks = False
        try:
            then(answer)
        except Exception as error:
            self._end(error)
        else:
            self.step()

    def _cut(self) -> None:
        if self.ends_at is None and not self._ended:
            self.ends_at = self._moved + self._behind + held(self._source)
            self.step()

    def _look(self, looked: asyncio.Future[asyncio.Task[None] | None]) -> None:
        for _ in range(_STEPS):
            self.step()
            if self._waits_for >= 0 or self._asks or self._ended:
                break
        asks = self._asks
        self._pump.tell(self._loop, lambda: looked.set_result(self._asked if asks else None))

    def _end(self, error: BaseException | None) -> None:
        if not self._ended:
            self._ended = True
            self._pump.forget(self, self._waits_for)
            self._pump.flows.discard(self)
            close_all(self._copies)
            self._pump.tell(self._loop, self._settle, error)


class Pump:
    """The thread. It starts with the first flow, and ends some time after the last one."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._calls: deque[tuple[Callable[..., None], tuple[Any, ...]]] = deque()
        self._wake: int | None = None
        self.thread: threading.Thread | None = None
        self._epoll: select.epoll | None = None
        self._ready: dict[Flow, None] = {}
        self._waiting: dict[int, Flow] = {}
        self.flows: set[Flow] = set()

    def call(self, function: Callable[..., None], *arguments: Any) -> None:
        """Run it in the thread."""
        with self._lock:
            self._calls.append((function, arguments))
            if self._wake is not None:
                os.eventfd_write(self._wake, 1)
                return
            try:
                self._start()
            except BaseException:
                self._calls.clear()
                raise

    def _start(self) -> None:
        with contextlib.ExitStack() as opened:
            self._epoll = select.epoll()
            opened.callback(self._epoll.close)
            wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
            opened.callback(os.close, wake)
            self._epoll.register(wake, select.EPOLLIN)
            self.thread = threading.Thread(target=self._run, args=(self._epoll, wake), name="pump", daemon=True)
            self.thread.start()
            self._wake = wake
            opened.pop_all()

    def _run(self, epoll: select.epoll, wake: int) -> None:
        while True:
            timeout = 0 if self._ready or self._calls else None if self.flows else _LINGER_SECONDS
            events = epoll.poll(timeout)
            if not events and timeout == _LINGER_SECONDS:
                with self._lock:
                    if not self._calls:
                        self._wake = None
                        break
            for descriptor, _ in events:
                if descriptor == wake:
                    os.eventfd_read(wake)
                elif (flow := self._waiting.pop(descriptor, None)) is not None:
                    epoll.unregister(descriptor)
                    self._ready[flow] = None
            while self._calls:
                function, arguments = self._calls.popleft()
                function(*arguments)
            ready, self._ready = self._ready, {}
            for flow in ready:
                flow.step()
        epoll.close()
        os.close(wake)

    # in the thread

    def again(self, flow: Flow) -> None:
        self._ready[flow] = None

    def wait(self, flow: Flow, descriptor: int, mask: int) -> None:
        assert self._epoll is not None
        self._epoll.register(descriptor, mask)
        self._waiting[descriptor] = flow

    def forget(self, flow: Flow, descriptor: int) -> None:
        if self._waiting.get(descriptor) is flow:
            assert self._epoll is not None
            del self._waiting[descriptor]
            self._epoll.unregister(descriptor)

    def tell(self, loop: asyncio.AbstractEventLoop, function: Callable[..., object], *arguments: object) -> None:
        with contextlib.suppress(RuntimeError):  # the loop was closed
            loop.call_soon_threadsafe(function, *arguments)


async def pour(reader: ByteReader, flow: Flow) -> None:
    """Move all of it to the client, by the reader's own `pour` if it has one. Raises what breaks it; BrokenPipeError
    when the client has closed its end."""
    own: Callable[[Flow], Awaitable[None]] | None = getattr(reader, "pour", None)
    await (flow.pour(reader.read) if own is None else own(flow))


async def draw(writer: ByteWriter, flow: Flow) -> None:
    """Move what the client writes, to its end, by the writer's own `draw` if it has one. Raises BrokenPipeError if the
    reader inside has gone."""
    own: Callable[[Flow], Awaitable[None]] | None = getattr(writer, "draw", None)
    await (flow.draw(writer.write) if own is None else own(flow))


async def transfer(reader: ByteReader, opening: Awaitable[ByteWriter]) -> None:
    """Move all of it on the event loop, from one sandbox into another. A failure leaves the target as it was."""
    async with contextlib.aclosing(reader):
        writer = await opening
        try:
            while data := await reader.read(_LOOKED_AT):
                await writer.write(data)
        except BaseException:
            await writer.abort()
            raise
        await writer.aclose()


def grow(moved: int, more: int, *ends: object) -> None:
    """Give pipes through which much has moved with `more` room for it."""
    if moved < _MUCH <= moved + more:
        for end in ends:
            if isinstance(end, int):
                with contextlib.suppress(OSError):  # EPERM: the user's pipes hold too much already
                    fcntl.fcntl(end, fcntl.F_SETPIPE_SZ, _CHUNK)


def _is_pipe(end: object) -> bool:
    return isinstance(end, int) and stat.S_ISFIFO(os.fstat(end).st_mode)


def held(source: int | Read) -> int:
    """How many bytes a pipe holds. 0 for a function."""
    if not isinstance(source, int):
        return 0
    (held,) = unpack("i", fcntl.ioctl(source, termios.FIONREAD, b"\0\0\0\0"))
    return held
