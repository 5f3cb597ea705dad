"""One request to a guest and what comes of it: an answer, streams, a result, an end; in that order, or not at all."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Generic, Protocol, Self, TypeVar

from paddock.errors import GuestLost, PaddockError, SandboxError
from paddock.wire import WireError
from paddock.wire.guest import Limit, Stream

from . import _frames as frames
from ._frames import Frame, Kind, ProtocolError

if TYPE_CHECKING:
    from ._connection import GuestConnection


class Answer(Protocol):
    @classmethod
    def unpack(cls, body: bytes) -> Self:
        """WireError: it is none."""
        ...


T = TypeVar("T")
A = TypeVar("A", bound=Answer)


class _Inbox:
    """What has come on one stream and was not read yet: never more than the window."""

    def __init__(self) -> None:
        self.chunks: deque[bytes | memoryview] = deque()
        self.window = Limit.WINDOW
        self.ended = False
        self.left = False
        """Nobody reads it any more."""
        self.consumed = 0
        self.waiter: asyncio.Future[None] | None = None

    def wake(self) -> None:
        if self.waiter is not None and not self.waiter.done():
            self.waiter.set_result(None)


class _Once(Generic[T]):
    """What comes once, or fails to. Whoever waits is woken by it and by nothing between; one who is cancelled takes
    nothing from the others."""

    done = False
    _value: T | None = None
    _error: PaddockError | None = None
    _waiters: tuple[asyncio.Future[None], ...] = ()
    _callbacks: tuple[Callable[[], None], ...] = ()

    async def get(self) -> T:
        if not self.done:
            waiter = asyncio.get_running_loop().create_future()
            self._waiters += (waiter,)
            await waiter
        if self._error is not None:
            raise self._error
        return self._value  # pyright: ignore[reportReturnType]

    @property
    def awaited(self) -> bool:
        return bool(self._waiters)

    def set(self, value: T | None, error: PaddockError | None = None) -> None:
        self.done, self._value, self._error = True, value, error
        for callback in self._callbacks:
            callback()
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)
        self._callbacks = self._waiters = ()

    def then(self, callback: Callable[[], None]) -> None:
        """Calls it before anybody who waits goes on; at once, if it is there already."""
        if self.done:
            callback()
        else:
            self._callbacks += (callback,)


class Channel:
    """Made by `GuestConnection.open`."""

    def __init__(
        self,
        connection: GuestConnection,
        number: int,
        refusal: Callable[[bytes], PaddockError],
        receives: Sequence[int],
        sends: bool,
    ) -> None:
        self._connection = connection
        self._refusal = refusal
        self.id = number
        self._inboxes = {stream: _Inbox() for stream in receives}
        self._sends = sends
        self._credit = Limit.WINDOW
        self._refused = False
        self._waiters: list[asyncio.Future[None]] = []
        self._reply: _Once[bytes] = _Once()
        self._result: _Once[bytes] = _Once()
        self._end: _Once[None] = _Once()
        self._letting_go = False
        self._error: PaddockError | None = None

    # what the holder does

    async def reply(self, type: type[A]) -> A:
        """The answer; the error that was sent in its place. When cancelled, lets go of the channel."""
        try:
            body = await self._reply.get()
        except asyncio.CancelledError:
            self.close()
            raise
        return self._read(body, type)

    async def result(self, type: type[A]) -> A:
        """What came of it in the end."""
        return self._read(await self._result.get(), type)

    async def call(self, type: type[A]) -> A:
        """The answer of a request that has nothing but an answer. GuestLost if the guest does not give it."""
        with self.attended():
            reply = await self.reply(type)
            await self._end.get()
            return reply

    def attended(self, *, works: bool = False, progress: Callable[[], object] = lambda: None) -> Patience:
        """In a `with`: whoever waits meanwhile gets GuestLost when the guest falls silent, or does not come to an end
        with what it `works` at, or else answers at once."""
        seconds = self._connection.work_seconds if works else self._connection.answer_seconds
        return Patience(self._connection, self, seconds, progress)

    def give_up(self, error: PaddockError) -> None:
        """Lets go without waiting for the guest's last word."""
        if not self._end.done:
            if not self._letting_go:
                self._letting_go = True
                self._connection.send(frames.pack_close(self.id))
            for inbox in self._inboxes.values():
                inbox.chunks.clear()
            self._finish(error)

    def breach(self, words: str) -> PaddockError:
        """What came was not what the protocol says: drops the connection."""
        return self._connection.breach(words)

    @property
    def has_ended(self) -> bool:
        """The guest has said its last word, or is not listened to any more."""
        return self._end.done

    async def ended(self) -> None:
        """Returns when the guest has said its last word about the channel, whatever it was."""
        await self._end.get()

    async def finished(self) -> None:
        """As `ended`, and raises what was wrong in the end."""
        await self.ended()
        if self._error is not None:
            raise self._error

    def when_result(self, callback: Callable[[], None]) -> None:
        """Called when the result is there, or never will be."""
        self._result.then(callback)

    def when_ended(self, callback: Callable[[], None]) -> None:
        """Called when the guest has said its last word, or the connection is lost."""
        self._end.then(callback)

    def _read(self, body: bytes, type: type[A]) -> A:
        try:
            return type.unpack(body)
        except WireError as error:
            raise self.breach(f"an answer with {error}") from None

    def close(self) -> None:
        """Lets go; idempotent. The guest cleans up and then ends the channel."""
        if not self._letting_go and not self._end.done:
            self._letting_go = True
            self._connection.send(frames.pack_close(self.id))
            for inbox in self._inboxes.values():
                inbox.chunks.clear()
                inbox.ended = True
                inbox.wake()

    async def read(self, stream: int, size: int) -> bytes:
        """b"" at the end; the error that ended it."""
        inbox = self._inboxes[stream]
        while not inbox.chunks:
            if inbox.ended:
                return b""
            if self._error is not None:
                raise self._error
            if self._end.done:
                return b""
            inbox.waiter = asyncio.get_running_loop().create_future()
            await inbox.waiter
        chunk = inbox.chunks.popleft()
        if len(chunk) > size:
            inbox.chunks.appendleft(memoryview(chunk)[size:])
            chunk = memoryview(chunk)[:size]
        inbox.consumed += len(chunk)
        if inbox.consumed >= Limit.WINDOW // 2 and not inbox.ended:
            self._connection.send(frames.pack_credit(self.id, stream, inbox.consumed))
            inbox.window += inbox.consumed
            inbox.consumed = 0
        return bytes(chunk)

    def is_whole(self, stream: int) -> bool:
        """Whether the guest has said that this is all of it, or nobody wants to know."""
        return self._inboxes[stream].ended

    async def write(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            if self._error is not None:
                raise self._error
            if self._refused or self._letting_go or self._end.done:
                raise BrokenPipeError("nobody inside reads it any more")
            if not self._credit:
                waiter = asyncio.get_running_loop().create_future()
                self._waiters.append(waiter)
                await waiter
                continue
            part = view[: min(self._credit, Limit.BODY)]
            self._credit -= len(part)
            self._connection.send(frames.data_header(self.id, Stream.IN, len(part)) + part)
            view = view[len(part) :]
            await self._connection.drain()

    def leave(self, stream: int) -> None:
        """Nobody reads it any more: as if the other end of a pipe were closed."""
        inbox = self._inboxes[stream]
        inbox.chunks.clear()
        if not (inbox.ended or inbox.left or self._letting_go or self._end.done):
            inbox.left = True
            self._connection.send(frames.pack_eof(self.id, stream))

    def write_eof(self) -> None:
        if not self._letting_go and not self._end.done:
            self._connection.send(frames.pack_eof(self.id, Stream.IN))

    # what the guest does

    def receive(self, frame: Frame) -> bool:
        """True: that was its last word. ProtocolError if it may not be said now."""
        kind = frame.kind
        if self._end.done:  # it was given up
            return kind is Kind.CLOSE or kind is Kind.ERROR
        if kind is Kind.CLOSE:
            if not self._reply.done and not self._letting_go:
                raise ProtocolError("CLOSE in place of an answer")
            self._finish(None)
            return True
        if kind is Kind.ERROR:
            self._finish(self._refusal(frame.body))
            return True
        if kind is Kind.REPLY:
            if self._reply.done:
                raise ProtocolError("a second answer")
            self._take(self._reply, frame.body)
        elif not self._reply.done:
            raise ProtocolError(f"{kind.name} before the answer")
        elif kind is Kind.EXIT:
            if self._result.done:
                raise ProtocolError("a second result")
            self._take(self._result, frame.body)
        elif kind is Kind.DATA:
            self._data(frame)
        elif kind is Kind.EOF:
            self._eof(frame.stream)
        elif kind is Kind.CREDIT:
            self._grant(frame)
        else:
            raise ProtocolError(f"{kind.name} from a guest")
        return False

    def _take(self, answer: _Once[bytes], body: bytes) -> None:
        """What was let go of is remembered until its end, and what nobody asks for any more is not."""
        if self._letting_go and not answer.awaited:
            answer.set(None, SandboxError("the request was let go of before it was answered"))
        else:
            answer.set(body)

    def _data(self, frame: Frame) -> None:
        inbox = self._inboxes.get(frame.stream)
        if inbox is None or (inbox.ended and not self._letting_go):
            raise ProtocolError(f"data on stream {frame.stream}, which is not open")
        inbox.window -= len(frame.data)
        if inbox.window < 0:
            raise ProtocolError("data beyond what was granted")
        if not self._letting_go and not inbox.left:
            inbox.chunks.append(frame.data)
            inbox.wake()

    def _eof(self, stream: int) -> None:
        if stream == Stream.IN and self._sends and not self._refused:
            self._refused = True
            self._wake_writers()
            return
        inbox = self._inboxes.get(stream)
        if inbox is None or (inbox.ended and not self._letting_go):
            raise ProtocolError(f"end of stream {stream}, which is not open")
        inbox.ended = True
        inbox.wake()

    def _grant(self, frame: Frame) -> None:
        self._credit += frame.credit
        if frame.stream != Stream.IN or not self._sends or self._credit > Limit.CREDIT:
            raise ProtocolError("credit for what is not sent")
        self._wake_writers()

    def _wake_writers(self) -> None:
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    def fail(self, error: PaddockError) -> None:
        """The connection is lost."""
        if not self._end.done:
            self._finish(error)

    def _finish(self, error: PaddockError | None) -> None:
        self._error = error
        if not self._result.done:
            failure = error or SandboxError("the guest ended the request without a result")
            if not self._reply.done:
                self._reply.set(None, failure)
            self._result.set(None, failure)
        self._end.set(None)
        for inbox in self._inboxes.values():
            inbox.wake()
        self._wake_writers()


class Patience:
    """While it is entered, `channel` is given up, with GuestLost, when its guest is silent for `patience_seconds`, and
    after `most_seconds` even if it is not.

    Half of the first is for silence, the other half for the answer to a ping: work that takes long and says nothing
    goes on. Time in which the sandbox or this process stands still counts for neither, and both begin again when
    `progress` has another value.
    """

    def __init__(
        self,
        connection: GuestConnection,
        channel: Channel,
        most_seconds: float,
        progress: Callable[[], object] = lambda: None,
    ) -> None:
        self._connection = connection
        self._channel = channel
        self._loop = asyncio.get_running_loop()
        self._half = connection.patience_seconds / 2
        self._most = self._left = most_seconds
        self._asked: float | None = None
        self._progress, self._seen = progress, progress()

    def __enter__(self) -> None:
        self._since = self._looked_at = self._loop.time()
        self._timer = self._loop.call_later(self._half, self._look)

    def __exit__(self, *_: object) -> None:
        self._timer.cancel()

    def _look(self) -> None:
        now = self._loop.time()
        before, self._seen = self._seen, self._progress()
        if self._seen != before:
            self._asked, self._since, self._left = None, now, self._most
        elif self._connection.stillness.now:  # it can say nothing, and that is known
            self._asked, self._since = None, now
        else:
            self._left -= min(now - self._looked_at, 2 * self._half)  # a look that comes late counts as two at most
        self._looked_at = now
        heard = max(self._since, self._connection.heard_at)
        if self._asked is not None and heard < self._asked:
            seconds = self._connection.patience_seconds
            self._give_up(f"has not answered for {seconds:g} s: perhaps it was stopped there")
            return
        if self._left <= 0:
            self._give_up(f"answers, but has not done in {self._most:g} s what it was asked", answers=True)
            return
        # Not before it was asked: it may be this process that slept.
        self._asked = None
        left = heard + self._half - self._loop.time()
        if left <= 0:
            self._asked, left = self._loop.time(), self._half
            self._connection.ping()
        self._timer = self._loop.call_later(left, self._look)

    def _give_up(self, how: str, **details: object) -> None:
        hint = "what was asked may have been done in part: look, and try again, or kill the sandbox"
        self._channel.give_up(GuestLost(f"what serves the sandbox inside {how}", hint=hint, **details))
