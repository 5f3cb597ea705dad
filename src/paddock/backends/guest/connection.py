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
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Generic, TypeVar

from paddock.backends.pause_clock import PauseClock
from paddock.errors import (
    GuestLostError,
    GuestProtocolError,
    InvalidArgumentError,
    PaddockError,
    SandboxDiedError,
    SandboxError,
    exhaustion,
)
from paddock.linux import local_sockets
from paddock.wire import Frame, Kind, WireError, close_all
from paddock.wire.duplex import LoopConnection
from paddock.wire.guest import VERSION, GuestHello, HostHello, Limit, Stream
from paddock.wire.message import Message

from . import _frames as frames
from ._frame_streams import FrameReader, FrameWriter
from ._requests import PING

if TYPE_CHECKING:
    from ._place import GuestDefaults
    from ._requests import Request

T = TypeVar("T")
_HIGH = 4 * 1024 * 1024
_MOST_WAITING = 64 * 1024 * 1024
_LAST_CHANNEL = 0xFFFF_FFFF
_MOST_REQUESTS = Limit.CHANNELS - 1
"""Under way at one time: the agent hangs up at one more than it has, and the last is for a ping."""
_SMALL_READ = 16 * 1024
_LARGE_READ = 256 * 1024
# A full backlog of a unix socket answers EAGAIN and says nothing when there is room again.
_CONNECT_PAUSE_SECONDS = 0.005
_CONNECT_TRIES = 1000


A = TypeVar("A", bound=Message)


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
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)
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
        self.outputs = {stream: FrameReader(self, stream) for stream in receives}
        self.input = FrameWriter(self) if sends else None
        self._reply: _Once[bytes] = _Once()
        self.exit: _Once[bytes] = _Once()
        """The result."""
        self.end: _Once[None] = _Once()
        """Done when the guest has said its last word, or is not listened to any more."""
        self._letting_go = False
        self.error: PaddockError | None = None

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
        return self._read(await self.exit.get(), type)

    async def call(self, type: type[A]) -> A:
        """Return the answer of a request that has nothing but an answer. GuestLostError if the guest does not
        give it."""
        with self.attended():
            reply = await self.reply(type)
            await self.end.get()
            return reply

    def attended(self, *, works: bool = False, progress: Callable[[], object] = lambda: None) -> SilenceLimit:
        """Return a context manager. In it, waiting raises GuestLostError if the guest falls silent, or takes too long
        with what it `works` at or should answer at once."""
        seconds = self._connection.work_seconds if works else self._connection.answer_seconds
        return SilenceLimit(self._connection, self, seconds, progress)

    def give_up(self, error: PaddockError) -> None:
        """Lets go without waiting for the guest's last word."""
        if not self.end.done:
            self._let_go()
            self.finish(error)

    def breach(self, words: str) -> PaddockError:
        """Drop the connection, and return the error: what came isn't what the protocol says."""
        return self._connection.breach(words)

    async def finished(self) -> None:
        """Wait for the guest's last frame on the channel. Raises what was wrong in the end."""
        await self.end.get()
        if self.error is not None:
            raise self.error

    def _read(self, body: bytes, type: type[A]) -> A:
        try:
            return type.unpack(body)
        except WireError as error:
            raise self.breach(f"an answer with {error}") from None

    def close(self) -> None:
        """Lets go; idempotent. The guest cleans up and then ends the channel."""
        if not self.is_over:
            self._let_go()
            for output in self.outputs.values():
                output.end()

    def _let_go(self) -> None:
        if not self._letting_go:
            self._letting_go = True
            self.send(Kind.CLOSE)
            for output in self.outputs.values():
                output.drop()

    @property
    def is_over(self) -> bool:
        """Whether this side or the guest has let go of it."""
        return self._letting_go or self.end.done

    def send(self, kind: Kind, body: bytes = b"", *, flags: int = 0) -> None:
        self._connection.send(kind, self.id, body, flags=flags)

    async def drain(self, most: int = _HIGH) -> None:
        """Wait until at most `most` bytes of the connection wait to be sent."""
        await self._connection.drain(most)

    def write_eof(self) -> None:
        if not self.is_over:
            self.send(Kind.EOF, flags=Stream.IN)

    # what the guest does

    def receive(self, frame: Frame) -> bool:
        """Take a frame. Return True if it was the last. Raises WireError if it isn't allowed now."""
        kind = frame.kind
        if self.end.done:  # it was given up
            return kind is Kind.CLOSE or kind is Kind.ERROR
        if kind is Kind.CLOSE:
            if not self._reply.done and not self._letting_go:
                raise WireError("CLOSE in place of an answer")
            self.finish(None)
            return True
        if kind is Kind.ERROR:
            self.finish(self._refusal(frame.body))
            return True
        if kind is Kind.REPLY:
            if self._reply.done:
                raise WireError("a second answer")
            self._take(self._reply, frame.body)
        elif not self._reply.done:
            raise WireError(f"{kind.name} before the answer")
        elif kind is Kind.EXIT:
            if self.exit.done:
                raise WireError("a second result")
            self._take(self.exit, frame.body)
            if self.input is not None:
                self.input.wake()
        elif kind is Kind.DATA:
            self._output(frame).receive(frame.body)
        elif kind is Kind.EOF and frame.flags == Stream.IN and self.input is not None and not self.input.is_refused:
            self.input.refuse()
        elif kind is Kind.EOF:
            self._output(frame).end()
        elif kind is Kind.CREDIT:
            if frame.flags != Stream.IN or self.input is None:
                raise WireError("credit for a stream that this side doesn't send")
            self.input.grant(frame)
        else:
            raise WireError(f"{kind.name} from a guest")
        return False

    def _take(self, answer: _Once[bytes], body: bytes) -> None:
        """Take an answer. An answer whose caller has left is remembered until its end."""
        if self._letting_go and not answer.awaited:
            answer.set(None, SandboxError("the request was let go of before it was answered"))
        else:
            answer.set(body)

    def _output(self, frame: Frame) -> FrameReader:
        output = self.outputs.get(frame.flags)
        if output is None or (output.is_whole and not self._letting_go):
            raise WireError(f"{frame.kind.name} on stream {frame.flags}, which is not open")
        return output

    def finish(self, error: PaddockError | None) -> None:
        """End it, and fail all waiters: the guest has said its last word, or the connection is lost."""
        if self.end.done:
            return
        self.error = error
        if not self.exit.done:
            failure = error or SandboxError("the guest ended the request without a result")
            if not self._reply.done:
                self._reply.set(None, failure)
            self.exit.set(None, failure)
        self.end.set(None)
        for output in self.outputs.values():
            output.wake()
        if self.input is not None:
            self.input.wake()


class SilenceLimit:
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


def _greeting(frame: Frame) -> int:
    """Return the guest's process id."""
    with contextlib.suppress(WireError):
        if frame.kind is Kind.HELLO and (hello := GuestHello.unpack(frame.body)).version == VERSION:
            return hello.pid
    raise WireError(f"no greeting in version {VERSION}")


class GuestConnection(LoopConnection):
    """Run many channels over one stream socket. It belongs to the event loop that made it, and owns the socket.

    A call fails when its guest is silent for `patience_seconds`, or takes longer than allowed. When the other side has
    gone, `explain` finds the reason, and pending calls fail with what it returns.
    """

    patience_seconds = 30.0
    answer_seconds = 60.0
    """For what the guest's one thread does, so that pings are not answered meanwhile."""
    work_seconds = 3600.0
    """For what it has a worker do: walks, copies, archives."""

    def __init__(self, stream: socket.socket, place: GuestDefaults) -> None:
        super().__init__(stream, frames.inbox())
        self.place = place
        self._read_size = _SMALL_READ
        self._channels: dict[int, Channel] = {}
        self._last_channel = 0
        self._has_room = asyncio.Event()
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
        self.descriptors = True
        """Whether descriptors can be passed in."""
        self.tells = False
        """Whether the other side knows which limit a command exceeded."""
        self.send(Kind.HELLO, 0, HostHello(version=VERSION).pack())

    @classmethod
    async def connect(cls, path: Path, place: GuestDefaults) -> GuestConnection:
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
        """Send a request; the caller awaits the answer on the channel. The connection closes `fds`, even if this
        raises.

        `receives` are the streams on which data may come.
        """
        try:
            self._require_open(request)
        except PaddockError:
            close_all(fds)
            raise
        self._last_channel += 1
        channel = Channel(self, self._last_channel, request.error, receives, sends)
        self._channels[channel.id] = channel
        self.send(Kind.OPEN, channel.id, request.body, tuple(fds), flags=request.op)
        return channel

    def _require_open(self, request: Request) -> None:
        """One more request is one more to remember, until the guest has read it and said its last word about it."""
        if self._failure is not None:
            raise self._failure
        if self._explaining is not None:
            raise GuestLostError("the connection to the guest was lost", hint="try again")
        if self._last_channel == _LAST_CHANNEL:
            raise self._break_off(GuestProtocolError("all channel numbers are used up"))
        if len(self._channels) >= _MOST_REQUESTS and request is not PING:
            raise SandboxError(
                f"more than {_MOST_REQUESTS} requests to one sandbox at one time",
                hint="wait for the end of some of them, or kill the sandbox",
            )
        if self._unsent_bytes > _MOST_WAITING:
            raise GuestLostError(
                "what serves the sandbox inside does not read what it is asked", hint="kill the sandbox"
            )
        if len(request.body) > Limit.OPEN_BODY:
            raise InvalidArgumentError(
                f"a request of more than {Limit.OPEN_BODY >> 20} MiB", hint="pass it on stdin or as a file"
            )

    def ping(self) -> None:
        """Has the guest say something, if it can."""
        if not self.closed and (self._ping is None or self._ping.end.done):
            with contextlib.suppress(PaddockError):  # it reads nothing: it will not be heard of, and that is judged
                self._ping = self.open(PING)

    def send(
        self, kind: Kind, channel: int, body: bytes = b"", descriptors: tuple[int, ...] = (), *, flags: int = 0
    ) -> None:
        """Send now or when there is room. Silently nothing on a dead connection: its channels know."""
        if self.closed:
            close_all(descriptors)
        else:
            super().send(kind, channel, body, descriptors, flags=flags)

    async def drain(self, most: int = _HIGH) -> None:
        """Wait until at most `most` bytes wait to be sent, or the connection has failed."""
        while self._unsent_bytes > most and not self.closed:
            self._has_room.clear()
            await self._has_room.wait()

    def breach(self, words: str, **details: object) -> PaddockError:
        """Drop the connection, and return the error: what came, or didn't come, isn't what the protocol says."""
        error = GuestProtocolError(f"the guest broke the protocol: {words}", hint="kill the sandbox", **details)
        self._break_off(error)
        return error

    def close(self) -> None:
        """Close the connection. The guest ends its foreground commands."""
        if self._explaining is not None:
            self._explaining.cancel()
        self._break_off(SandboxDiedError("the connection to the guest was closed by this side"))

    def _wait_for_room(self, wanted: bool) -> None:
        super()._wait_for_room(wanted)
        if self._unsent_bytes <= _HIGH:
            self._has_room.set()

    def _readable(self) -> None:
        try:
            # recv, never recvmsg: the kernel closes descriptors that the other side sends.
            data = self._peer.recv(self._read_size)
            if not data:
                raise ConnectionResetError
            self.heard_at = self._loop.time()
            self._read_size = _LARGE_READ if len(data) >= self._read_size else _SMALL_READ
            for frame in self._inbox.feed(data):
                self._on_frame(frame)
        except BlockingIOError:
            return
        except (OSError, WireError) as error:
            self._fail(error)

    def _on_frame(self, frame: Frame) -> None:
        frames.require_sound(frame)
        if self.peer_pid is None:
            self.peer_pid = _greeting(frame)
            return
        channel = self._channels.get(frame.channel)
        if channel is None:
            raise WireError(f"{frame.kind.name} on channel {frame.channel}, which is not open")
        if channel.receive(frame):
            del self._channels[channel.id]

    def _on_unsent(self, frame: Frame, error: OSError) -> bool:
        exhausted = exhaustion(error)
        if exhausted is not None:
            self._channels.pop(frame.channel).finish(exhausted)
        return exhausted is not None

    def _fail(self, error: OSError | WireError) -> None:
        """Note that the other side has gone, or lies. Nothing fails before the reason is known."""
        if isinstance(error, WireError):
            self._break_off(GuestProtocolError(f"the guest broke the protocol: {error}"))
        elif not self.closed and self.explain is not None:
            self._explaining = self._loop.create_task(self._explained(self.explain))
            super().close()
        elif not self.closed:
            lost = "the connection to the sandbox's guest was lost"
            self._break_off(SandboxDiedError(lost, hint="`paddock ls --all` says why"))

    async def _explained(self, explain: Callable[[], Awaitable[PaddockError]]) -> None:
        try:
            self._break_off(await explain())
        except Exception as error:
            self._break_off(GuestLostError(f"the connection to the guest was lost, and it is not known why: {error}"))
            raise

    def _break_off(self, error: PaddockError) -> PaddockError:
        if self._failure is None:
            self._failure = error
            super().close()
            channels, self._channels = self._channels, {}
            for channel in channels.values():
                channel.finish(error)
        return self._failure

    def _on_end(self) -> None:
        self._has_room.set()
