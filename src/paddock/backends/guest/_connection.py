"""The host's end of a connection to a guest. Whatever deviates from the protocol drops the connection."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import socket
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from paddock.backends._stillness import Stillness
from paddock.errors import GuestLost, GuestProtocolError, InvalidArgument, PaddockError, SandboxDied, SandboxError
from paddock.wire import WireError, send_some
from paddock.wire.guest import VERSION, GuestHello, HostHello, Limit

from . import _frames as frames
from ._channel import Channel
from ._frames import Frame, Kind, ProtocolError
from ._requests import PING

if TYPE_CHECKING:
    from ._place import Place
    from ._requests import Request

_MAX_ADDRESS = 107  # bytes of sun_path without its NUL, unix(7)
_HIGH = 4 * 1024 * 1024
_MOST_WAITING = 64 * 1024 * 1024
_MOST_REQUESTS = Limit.CHANNELS - 1
"""Under way at one time: the agent hangs up at one more than it has, and the last is for a ping."""
_SMALL_READ = 16 * 1024
_LARGE_READ = 256 * 1024
# A full backlog of a unix socket answers EAGAIN and says nothing when there is room again.
_CONNECT_PAUSE_SECONDS = 0.005
_CONNECT_TRIES = 1000


def _copies(fds: Sequence[int]) -> list[int]:
    copies: list[int] = []
    try:
        copies.extend(map(os.dup, fds))
    except OSError:
        for copy in copies:
            os.close(copy)
        raise
    return copies


def _greeting(frame: Frame) -> int:
    """The guest's process id."""
    with contextlib.suppress(WireError):
        if frame.kind is Kind.HELLO and (hello := GuestHello.unpack(frame.body)).version == VERSION:
            return hello.pid
    raise ProtocolError(f"no greeting in version {VERSION}")


def _died() -> PaddockError:
    return SandboxDied("the connection to the sandbox's guest was lost", hint="`paddock ls --all` says why")


class GuestConnection:
    """Many channels over one stream socket. Belongs to the event loop it is made in; owns the socket.

    A call whose guest is silent for `patience_seconds` fails, as does one that takes longer than it may. When the other
    side has gone, `explain` finds out why: what was under way then fails with what it returns.
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
        self.stillness = Stillness()
        """Nothing is heard of a guest while it stands still."""
        self.heard_at = 0.0
        """When the guest last said anything, by the loop's clock."""
        self._ping: Channel | None = None
        self.peer_pid: int | None = None
        """The guest's process id as it sees it itself; known when it has said anything."""
        self.descriptors = stream.family == socket.AF_UNIX
        """True where file descriptors can be handed in."""
        self.tells = False
        """Who serves it knows which ceiling struck a command."""
        self._loop.add_reader(stream.fileno(), self._readable)
        self.send(frames.pack(Kind.HELLO, 0, HostHello(version=VERSION).pack()))

    @classmethod
    async def connect(cls, path: Path, place: Place) -> GuestConnection:
        """OSError as connect(2) has it. The path may be longer than a socket address holds."""
        with contextlib.ExitStack() as opened:
            address = os.fspath(path)
            if len(os.fsencode(address)) > _MAX_ADDRESS:
                directory = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
                opened.callback(os.close, directory)
                address = f"/proc/self/fd/{directory}/{path.name}"
            stream = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            try:
                stream.setblocking(False)
                for _ in range(_CONNECT_TRIES):
                    try:
                        stream.connect(address)
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
        """The error of a closed connection, once it is known."""
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
        """Asks; the answer is awaited on the channel. Copies of `fds` travel: the caller closes its own at once.

        `receives` are the streams on which data may come.
        """
        if self._failure is not None:
            raise self._failure
        if self._explaining is not None:
            raise GuestLost("the connection to the guest was lost", hint="try again")
        if self._last_channel == frames.MAX_CHANNEL:
            raise self._fail(GuestProtocolError("all channel numbers are used up"))
        self._require_room(request)
        if len(request.body) > Limit.OPEN_BODY:
            raise InvalidArgument(
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
            raise GuestLost("what serves the sandbox inside does not read what it is asked", hint="kill the sandbox")

    def ping(self) -> None:
        """Has the guest say something, if it can."""
        if not self.closed and (self._ping is None or self._ping.has_ended):
            with contextlib.suppress(PaddockError):  # it reads nothing: it will not be heard of, and that is judged
                self._ping = self.open(PING)

    def send(self, data: bytes | memoryview, fds: Sequence[int] = ()) -> None:
        """Sends now or when there is room. Silently nothing on a dead connection: its channels know."""
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

    async def drain(self) -> None:
        """Returns when little waits to be sent, or the connection has failed."""
        while self._out_bytes > _HIGH and not self.closed:
            waiter = self._loop.create_future()
            self._room.append(waiter)
            await waiter

    def _writable(self) -> None:
        try:
            while self._out:
                view, fds = self._out[0]
                sent = send_some(self._socket, view, fds)
                self._out_bytes -= sent
                for fd in fds:
                    os.close(fd)
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
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    def _readable(self) -> None:
        # recv, never recvmsg: descriptors that the other side sends are closed by the kernel, unseen.
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
        """What came, or did not come, is not what the protocol says: drops the connection."""
        error = GuestProtocolError(f"the guest broke the protocol: {words}", hint="kill the sandbox", **details)
        self._fail(error)
        return error

    def _lost(self) -> None:
        """The other side has gone. Nothing fails before it is known why."""
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
            self._fail(GuestLost(f"the connection to the guest was lost, and it is not known why: {error}"))
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
            for fd in fds:
                os.close(fd)
        self._out.clear()
        self._out_bytes = 0
        self._wake_writers()

    def close(self) -> None:
        """Cuts it. What runs in the foreground on it is ended by the guest."""
        if self._explaining is not None:
            self._explaining.cancel()
        self._fail(SandboxDied("the connection to the guest was closed by this side"))
