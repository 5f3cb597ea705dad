"""Connect to a guest. Each request on a connection is a channel.

A request yields an answer, streams, a result and an end, in that order; each may be missing. A deviation from the
protocol drops the connection.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import socket
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Generic, Protocol, Self, TypeVar

from paddock.backends._pause_clock import PauseClock
from paddock.errors import (
    GuestLostError,
    GuestProtocolError,
    InvalidArgumentError,
    PaddockError,
    SandboxDiedError,
    SandboxError,
)
from paddock.linux import local_sockets
from paddock.wire import WireError, close_all, send_some
from paddock.wire.guest import VERSION, GuestHello, HostHello, Limit, Stream

from . import _frames as frames
from ._frames import Frame, Kind, ProtocolError
from ._requests import PING

if TYPE_CHECKING:
    from ._place import Place
    from ._requests import Request

T = TypeVar("T")
_HIGH = 4 * 1024 * 1024
_MOST_WAITING = 64 * 1024 * 1024
_MOST_REQUESTS = Limit.CHANNELS - 1
"""Under way at one time: the agent hangs up at one more than it has, and the last is for a ping."""
_SMALL_READ = 16 * 1024
_LARGE_READ = 256 * 1024
# A full backlog of a unix socket answers EAGAIN and says nothing when there is room again.
_CONNECT_PAUSE_SECONDS = 0.005
_CONNECT_TRIES = 1000


def _wake(waiters: Iterable[asyncio.Future[None]]) -> None:
    for waiter in waiters:
        if not waiter.done():
            waiter.set_result(None)


class Answer(Protocol):
    @classmethod
    def unpack(cls, body: bytes) -> Self:
        """WireError: it is none."""
        ...


A = TypeVar("A", bound=Answer)


class _Inbox:
    """Hold unread bytes of one stream, never more than the window."""

    def __init__(self) -> None:
        self.chunks: deque[bytes | memoryview] = deque()
        self.window = Limit.WINDOW
        self.ended = False
        self.left = False
        """The reader has left."""
        self.consumed = 0
        self.waiter: asyncio.Future[None] | None = None

    def wake(self) -> None:
        if self.waiter is not None:
            _wake((self.waiter,))


class _Once(Generic[T]):
    """Hold a value that comes once, or an error. It wakes each waiter once; a cancelled waiter takes nothing from the
    others."""

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
        _wake(self._waiters)
        self._callbacks = self._waiters = ()

    def then(self, callback: Callable[[], None]) -> None:
        """Call `callback` before the waiters continue; at once if the value is there."""
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
        self.taken = 0
        """Bytes of the written ones that the command has read, at least."""
        self._refused = False
        self._waiters: list[asyncio.Future[None]] = []
        self._reply: _Once[bytes] = _Once()
        self._result: _Once[bytes] = _Once()
        self._end: _Once[None] = _Once()
        self._letting_go = False
        self._error: PaddockError | None = None

    # what the holder does

    async def reply(self, type: type[A], *, lets_go: bool = True) -> A:
        """Return the answer, or raise the guest's error. If cancelled, release the channel, if `lets_go`."""
        try:
            body = await self._reply.get()
        except asyncio.CancelledError:
            if lets_go:
                self.close()
            raise
        return self._read(body, type)

    async def result(self, type: type[A]) -> A:
        """Return what came of it in the end."""
        return self._read(await self._result.get(), type)

    async def call(self, type: type[A]) -> A:
        """Return the answer of a request that has nothing but an answer. GuestLostError if the guest does not
        give it."""
        with self.attended():
            reply = await self.reply(type)
            await self._end.get()
            return reply

    def attended(self, *, works: bool = False, progress: Callable[[], object] = lambda: None) -> Patience:
        """Return a context manager. In it, waiting raises GuestLostError if the guest falls silent, or takes too long
        with what it `works` at or should answer at once."""
        seconds = self._connection.work_seconds if works else self._connection.answer_seconds
        return Patience(self._connection, self, seconds, progress)

    def give_up(self, error: PaddockError) -> None:
        """Lets go without waiting for the guest's last word."""
        if not self._end.done:
            self._let_go()
            self._finish(error)

    def breach(self, words: str) -> PaddockError:
        """Drop the connection, and return the error: what came isn't what the protocol says."""
        return self._connection.breach(words)

    @property
    def has_result(self) -> bool:
        return self._result.done

    @property
    def has_ended(self) -> bool:
        """The guest has said its last word, or is not listened to any more."""
        return self._end.done

    async def ended(self) -> None:
        """Wait for the guest's last frame on the channel."""
        await self._end.get()

    async def finished(self) -> None:
        """As `ended`, and raises what was wrong in the end."""
        await self.ended()
        if self._error is not None:
            raise self._error

    def when_result(self, callback: Callable[[], None]) -> None:
        """Call back when the result is there, or never will be."""
        self._result.then(callback)

    def when_ended(self, callback: Callable[[], None]) -> None:
        """Call back after the guest's last frame, or when the connection is lost."""
        self._end.then(callback)

    def _read(self, body: bytes, type: type[A]) -> A:
        try:
            return type.unpack(body)
        except WireError as error:
            raise self.breach(f"an answer with {error}") from None

    def close(self) -> None:
        """Lets go; idempotent. The guest cleans up and then ends the channel."""
        if not self._letting_go and not self._end.done:
            self._let_go()
            for inbox in self._inboxes.values():
                inbox.ended = True
                inbox.wake()

    def _let_go(self) -> None:
        if not self._letting_go:
            self._letting_go = True
            self._connection.send(frames.pack_close(self.id))
            for inbox in self._inboxes.values():
                inbox.chunks.clear()

    async def read(self, stream: int, size: int) -> bytes:
        """b"" at the end; the error that ended it."""
        inbox = self._inboxes[stream]
        # The reader has stored what it got before: the guest can drop that.
        if inbox.consumed >= Limit.WINDOW // 2 and not inbox.ended:
            self._connection.send(frames.pack_credit(self.id, stream, inbox.consumed))
            inbox.window += inbox.consumed
            inbox.consumed = 0
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
        return bytes(chunk)

    def is_whole(self, stream: int) -> bool:
        """Tell whether the guest has said that the stream is complete, or its reader has left."""
        return self._inboxes[stream].ended

    async def write(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            if self._error is not None:
                raise self._error
            if self._refused or self._letting_go or self._result.done:
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
        """Stop reading a stream, as if the other end of a pipe were closed."""
        inbox = self._inboxes[stream]
        inbox.chunks.clear()
        if not (inbox.ended or inbox.left or self._letting_go or self._end.done):
            inbox.left = True
            self._connection.send(frames.pack_eof(self.id, stream))

    async def sent(self) -> None:
        """Wait until all that was sent on this connection reaches the guest, even if this process dies."""
        with self.attended():
            await self._connection.drain(0)

    def write_eof(self) -> None:
        if not self._letting_go and not self._end.done:
            self._connection.send(frames.pack_eof(self.id, Stream.IN))

    # what the guest does

    def receive(self, frame: Frame) -> bool:
        """Take a frame. Return True if it was the last. Raises ProtocolError if it isn't allowed now."""
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
            self._wake_writers()
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
        """Take an answer. An answer whose caller has left is remembered until its end."""
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
        self.taken += frame.credit
        if frame.stream != Stream.IN or not self._sends or self._credit > Limit.CREDIT:
            raise ProtocolError("credit for what is not sent")
        self._wake_writers()

    def _wake_writers(self) -> None:
        waiters, self._waiters = self._waiters, []
        _wake(waiters)

    def fail(self, error: PaddockError) -> None:
        """Fail all waiters: the connection is lost."""
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
    """While entered, give up `channel` with GuestLostError when its guest is silent for `patience_seconds`, or after
    `most_seconds`.

    Half of the first is for silence, the other half for the answer to a ping, so that silent long work continues. Time
    in a pause of the sandbox or this process doesn't count. Both times start anew when `progress` changes.
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
        elif self._connection.pause_clock.now:  # it can say nothing, and that is known
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
        # Not before a ping: this process may be the one that slept.
        self._asked = None
        left = heard + self._half - self._loop.time()
        if left <= 0:
            self._asked, left = self._loop.time(), self._half
            self._connection.ping()
        self._timer = self._loop.call_later(left, self._look)

    def _give_up(self, how: str, **details: object) -> None:
        hint = "what was asked may have been done in part: look, and try again, or kill the sandbox"
        self._channel.give_up(GuestLostError(f"what serves the sandbox inside {how}", hint=hint, **details))


def _copies(fds: Sequence[int]) -> list[int]:
    copies: list[int] = []
    try:
        copies.extend(map(os.dup, fds))
    except OSError:
        close_all(copies)
        raise
    return copies


def _greeting(frame: Frame) -> int:
    """Return the guest's process id."""
    with contextlib.suppress(WireError):
        if frame.kind is Kind.HELLO and (hello := GuestHello.unpack(frame.body)).version == VERSION:
            return hello.pid
    raise ProtocolError(f"no greeting in version {VERSION}")


def _died() -> PaddockError:
    return SandboxDiedError("the connection to the sandbox's guest was lost", hint="`paddock ls --all` says why")


class GuestConnection:
    """Run many channels over one stream socket. It belongs to the event loop that made it, and owns the socket.

    A call fails when its guest is silent for `patience_seconds`, or takes longer than allowed. When the other side has
    gone, `explain` finds the reason, and pending calls fail with what it returns.
    """

    patience_seconds = 30.0
    answer_seconds = 60.0
    """For what the guest's one thread does, so that pings are not answered meanwhile."""
    work_seconds = 3600.0
    """For what it has a worker do: walks, copies, archives."""

    def __init__(self, stream: socket.socket, place: Place) -> None:
        stream.setblocking(False)
        self._socket = stream
        self.place = place
        self._loop = asyncio.get_running_loop()
        self._decoder = frames.Decoder()
        self._greeted = False
        self._read_size = _SMALL_READ
        self._channels: dict[int, Channel] = {}
        self._last_channel = 0
        self._out: deque[tuple[memoryview, list[int]]] = deque()
        self._out_bytes = 0
        self._room: list[asyncio.Future[None]] = []
        self._failure: PaddockError | None = None
        self._explaining: asyncio.Task[None] | None = None
        self.explain: Callable[[], Awaitable[PaddockError]] | None = None
        self.pause_clock = PauseClock()
        """A paused guest is silent."""
        self.heard_at = 0.0
        """When the guest last said anything, by the loop's clock."""
        self._ping: Channel | None = None
        self.peer_pid: int | None = None
        """The guest's process id as it sees it itself; known when it has said anything."""
        self.descriptors = stream.family == socket.AF_UNIX
        """Whether descriptors can be passed in."""
        self.tells = False
        """Whether the other side knows which limit a command exceeded."""
        self._loop.add_reader(stream.fileno(), self._readable)
        self.send(frames.pack(Kind.HELLO, 0, HostHello(version=VERSION).pack()))

    @classmethod
    async def connect(cls, path: Path, place: Place) -> GuestConnection:
        """OSError as connect(2) has it. The path may be longer than a socket address holds."""
        stream = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            stream.setblocking(False)
            with local_sockets.reached(path.parent) as directory:
                for _ in range(_CONNECT_TRIES):
                    try:
                        stream.connect(f"{directory}/{path.name}")
                        return cls(stream, place)
                    except BlockingIOError:
                        await asyncio.sleep(_CONNECT_PAUSE_SECONDS)
            raise OSError(errno.ETIMEDOUT, "the guest accepts no connection", os.fspath(path))
        except BaseException:
            stream.close()
            raise

    @property
    def closed(self) -> bool:
        return self._failure is not None or self._explaining is not None

    async def why(self) -> PaddockError:
        """Return the error of a closed connection, once it is known."""
        if self._explaining is not None:
            await asyncio.wait((self._explaining,))
        assert self._failure is not None
        return self._failure

    def open(
        self,
        request: Request,
        *,
        fds: Sequence[int] = (),
        receives: Sequence[int] = (),
        sends: bool = False,
    ) -> Channel:
        """Send a request; the caller awaits the answer on the channel. Copies of `fds` travel: the caller closes its
        own at once.

        `receives` are the streams on which data may come.
        """
        if self._failure is not None:
            raise self._failure
        if self._explaining is not None:
            raise GuestLostError("the connection to the guest was lost", hint="try again")
        if self._last_channel == frames.MAX_CHANNEL:
            raise self._fail(GuestProtocolError("all channel numbers are used up"))
        self._require_room(request)
        if len(request.body) > Limit.OPEN_BODY:
            raise InvalidArgumentError(
                f"a request of more than {Limit.OPEN_BODY >> 20} MiB", hint="pass it on stdin or as a file"
            )
        self._last_channel += 1
        frame = frames.pack(Kind.OPEN, self._last_channel, request.body, code=request.op, descriptors=len(fds))
        channel = Channel(self, self._last_channel, request.error, receives, sends)
        self._channels[channel.id] = channel
        try:
            self.send(frame, fds)
        except OSError:  # no descriptor left for the copies: nothing was sent
            del self._channels[channel.id]
            raise
        return channel

    def _require_room(self, request: Request) -> None:
        """One more request is one more to remember, until the guest has read it and said its last word about it."""
        if len(self._channels) >= _MOST_REQUESTS and request is not PING:
            raise SandboxError(
                f"more than {_MOST_REQUESTS} requests to one sandbox at one time",
                hint="wait for the end of some of them, or kill the sandbox",
            )
        if self._out_bytes > _MOST_WAITING:
            raise GuestLostError(
                "what serves the sandbox inside does not read what it is asked", hint="kill the sandbox"
            )

    def ping(self) -> None:
        """Has the guest say something, if it can."""
        if not self.closed and (self._ping is None or self._ping.has_ended):
            with contextlib.suppress(PaddockError):  # it reads nothing: it will not be heard of, and that is judged
                self._ping = self.open(PING)

    def send(self, data: bytes | memoryview, fds: Sequence[int] = ()) -> None:
        """Send now or when there is room. Silently nothing on a dead connection: its channels know."""
        if self.closed:
            return
        view = memoryview(data)
        if self._out:
            self._queue(view, _copies(fds))
            return
        try:
            sent = send_some(self._socket, view, fds)
        except BlockingIOError:
            self._queue(view, _copies(fds))
        except OSError as error:
            if error.errno == errno.ETOOMANYREFS:  # too many descriptors of this user are under way
                raise
            self._lost()
            return
        else:
            if sent < len(view):
                self._queue(view[sent:], [])
        if self._out:
            self._loop.add_writer(self._socket.fileno(), self._writable)

    def _queue(self, view: memoryview, fds: list[int]) -> None:
        self._out.append((view, fds))
        self._out_bytes += len(view)

    async def drain(self, most: int = _HIGH) -> None:
        """Wait until at most `most` bytes wait to be sent, or the connection has failed."""
        while self._out_bytes > most and not self.closed:
            waiter = self._loop.create_future()
            self._room.append(waiter)
            await waiter

    def _writable(self) -> None:
        try:
            while self._out:
                view, fds = self._out[0]
                sent = send_some(self._socket, view, fds)
                self._out_bytes -= sent
                close_all(fds)
                if sent < len(view):
                    self._out[0] = (view[sent:], [])
                else:
                    self._out.popleft()
        except BlockingIOError:
            pass
        except OSError:
            self._lost()
            return
        if not self._out:
            self._loop.remove_writer(self._socket.fileno())
        if self._out_bytes <= _HIGH:
            self._wake_writers()

    def _wake_writers(self) -> None:
        waiters, self._room = self._room, []
        _wake(waiters)

    def _readable(self) -> None:
        # recv, never recvmsg: the kernel closes descriptors that the other side sends.
        try:
            data = self._socket.recv(self._read_size)
        except BlockingIOError:
            return
        except OSError:
            self._lost()
            return
        if not data:
            self._lost()
            return
        self.heard_at = self._loop.time()
        self._read_size = _LARGE_READ if len(data) >= self._read_size else _SMALL_READ
        try:
            for frame in self._decoder.feed(data):
                self._dispatch(frame)
        except ProtocolError as error:
            self._fail(GuestProtocolError(f"the guest broke the protocol: {error}"))

    def _dispatch(self, frame: Frame) -> None:
        if not self._greeted:
            self.peer_pid = _greeting(frame)
            self._greeted = True
            return
        channel = self._channels.get(frame.channel)
        if channel is None:
            raise ProtocolError(f"{frame.kind.name} on channel {frame.channel}, which is not open")
        if channel.receive(frame):
            del self._channels[channel.id]

    def breach(self, words: str, **details: object) -> PaddockError:
        """Drop the connection, and return the error: what came, or didn't come, isn't what the protocol says."""
        error = GuestProtocolError(f"the guest broke the protocol: {words}", hint="kill the sandbox", **details)
        self._fail(error)
        return error

    def _lost(self) -> None:
        """Note that the other side has gone. Nothing fails before the reason is known."""
        if self.closed:
            return
        if self.explain is None:
            self._fail(_died())
            return
        self._explaining = self._loop.create_task(self._explained(self.explain))
        self._hang_up()

    async def _explained(self, explain: Callable[[], Awaitable[PaddockError]]) -> None:
        try:
            self._fail(await explain())
        except Exception as error:
            self._fail(GuestLostError(f"the connection to the guest was lost, and it is not known why: {error}"))
            raise

    def _fail(self, error: PaddockError) -> PaddockError:
        if self._failure is None:
            self._failure = error
            self._hang_up()
            channels, self._channels = self._channels, {}
            for channel in channels.values():
                channel.fail(error)
        return self._failure

    def _hang_up(self) -> None:
        if self._socket.fileno() < 0:
            return
        self._loop.remove_reader(self._socket.fileno())
        if self._out:
            self._loop.remove_writer(self._socket.fileno())
        self._socket.close()
        for _, fds in self._out:
            close_all(fds)
        self._out.clear()
        self._out_bytes = 0
        self._wake_writers()

    def close(self) -> None:
        """Close the connection. The guest ends its foreground commands."""
        if self._explaining is not None:
            self._explaining.cancel()
        self._fail(SandboxDiedError("the connection to the guest was closed by this side"))
