"""The guest's end of a connection, and the channels on it. The host allocates channels; each is ended exactly once."""

from __future__ import annotations

import os
import socket
from collections import deque
from collections.abc import Callable
from struct import iter_unpack

from ._faults import Fault, report
from ._frames import (
    MAX_REQUEST,
    MAX_WINDOW,
    STDIN,
    VERSION,
    WINDOW,
    Decoder,
    Frame,
    Json,
    Kind,
    ProtocolError,
    data_header,
    pack,
    pack_close,
    pack_credit,
    pack_eof,
)
from ._loop import IN, OUT, Loop

HIGH = 1024 * 1024
"""Bytes waiting for the host beyond which nothing more is read, from it or from files and pipes."""
MAX_CHANNELS = 1024
MAX_DESCRIPTORS = 16
"""Descriptors that one message may bring; a kernel's limit is far above."""
FEATURES = ("exec", "pty", "files", "watch", "ports", "doors", "descriptors")
_SMALL_READ = 16 * 1024
_LARGE_READ = 256 * 1024


class Handler:
    """What serves one channel. The defaults refuse: a stream or order that was not announced is a breach."""

    def data(self, stream: int, data: bytes) -> None:
        raise ProtocolError(f"data on stream {stream}")

    def eof(self, stream: int) -> None:
        raise ProtocolError(f"end of stream {stream}")

    def control(self, body: Json) -> None:
        raise ProtocolError("an order to something that takes none")

    def close(self) -> None:
        """The host lets go; the handler must end its channel, now or when it has cleaned up."""

    def writable(self) -> None:
        """There is credit, or room in the connection, where there was none."""


Serve = Callable[["Channel", Json, list[int]], Handler | None]


class Channel:
    __slots__ = ("_window", "connection", "credit", "ended", "handler", "id")

    def __init__(self, connection: Connection, number: int) -> None:
        self.connection = connection
        self.id = number
        self.handler = Handler()
        self.credit = [WINDOW, WINDOW, WINDOW]
        self._window = [WINDOW, WINDOW, WINDOW]
        self.ended = False

    def room(self, stream: int) -> int:
        """Bytes that may be sent on a stream now."""
        return self.credit[stream] if self.connection.roomy else 0

    def reply(self, body: Json) -> None:
        self._send(pack(Kind.REPLY, self.id, body))

    def send_data(self, stream: int, data: bytes) -> None:
        self.credit[stream] -= len(data)
        self._send(data_header(self.id, stream, len(data)), data)

    def send_eof(self, stream: int) -> None:
        self._send(pack_eof(self.id, stream))

    def exit(self, body: Json) -> None:
        self._send(pack(Kind.EXIT, self.id, body))

    def grant(self, stream: int, count: int) -> None:
        self._window[stream] += count
        self._send(pack_credit(self.id, stream, count))

    def answer(self, body: Json) -> None:
        """The reply and the end. One write: the host is woken once."""
        self._last(pack(Kind.REPLY, self.id, body), pack_close(self.id))

    def conclude(self, body: Json) -> None:
        """The result and the end."""
        self._last(pack(Kind.EXIT, self.id, body), pack_close(self.id))

    def end(self, fault: Fault | None = None) -> None:
        self._last(pack_close(self.id) if fault is None else pack(Kind.ERROR, self.id, fault.body()))

    def _last(self, *parts: bytes) -> None:
        """The last word about this channel. Nothing comes of another one."""
        if not self.ended:
            self.connection.send(*parts)
            self.ended = True
            self.connection.forget(self)

    def _send(self, *parts: bytes) -> None:
        if not self.ended:
            self.connection.send(*parts)

    def receive(self, frame: Frame) -> None:
        if frame.kind is Kind.DATA:
            self._window[frame.stream] -= len(frame.data)
            if frame.stream != STDIN or self._window[STDIN] < 0:
                raise ProtocolError("data beyond what was granted")
            self.handler.data(frame.stream, frame.data)
        elif frame.kind is Kind.EOF:
            self.handler.eof(frame.stream)
        elif frame.kind is Kind.CREDIT:
            self.credit[frame.stream] += frame.credit
            if self.credit[frame.stream] > MAX_WINDOW:
                raise ProtocolError("credit beyond the largest window")
            self.handler.writable()
        elif frame.kind is Kind.CONTROL:
            self.handler.control(frame.body)
        elif frame.kind is Kind.CLOSE:
            self.handler.close()
        else:
            raise ProtocolError(f"{frame.kind.name} from the host")


class Connection:
    """Frames over a socket, or over a pair of descriptors that need not be one. Owns what it is given."""

    def __init__(
        self,
        loop: Loop,
        stream: socket.socket | tuple[int, int],
        serve: Serve,
        lost: Callable[[Connection], None],
    ) -> None:
        self._loop = loop
        self._socket = stream if isinstance(stream, socket.socket) else None
        self._brings_descriptors = self._socket is not None and self._socket.family == socket.AF_UNIX
        self._fds = (stream.fileno(), stream.fileno()) if isinstance(stream, socket.socket) else stream
        for fd in self._fds:
            os.set_blocking(fd, False)
        self._serve = serve
        self._lost = lost
        self._decoder = Decoder(MAX_REQUEST)
        self._greeted = False
        self._last_channel = 0
        self._read_size = _SMALL_READ
        self._descriptors: deque[int] = deque()
        self._out: deque[bytes | memoryview] = deque()
        self._out_bytes = 0
        self.channels: dict[int, Channel] = {}
        self.closed = False
        self.watch()
        self.greet()

    def greet(self) -> None:
        self.send(pack(Kind.HELLO, 0, self.greeting()))

    def greeting(self) -> Json:
        return {"version": VERSION, "features": list(FEATURES), "pid": os.getpid()}

    @property
    def unsent(self) -> bool:
        return bool(self._out)

    @property
    def roomy(self) -> bool:
        return self._out_bytes < HIGH

    def send(self, *parts: bytes) -> None:
        if self.closed:
            return
        if self._out:
            self._queue(parts)
            return
        try:
            sent = os.writev(self._fds[1], parts)
        except BlockingIOError:
            sent = 0
        except OSError as error:
            # What a host had sent before it left is still served: after it comes the end of the stream.
            if self._socket is None or not isinstance(error, BrokenPipeError):
                self.drop()
            return
        if sent < sum(map(len, parts)):
            self._queue(parts, sent)
            self.watch()

    def _queue(self, parts: tuple[bytes, ...], skip: int = 0) -> None:
        for part in parts:
            if skip < len(part):
                self._out.append(memoryview(part)[skip:] if skip else part)
                self._out_bytes += len(part) - skip
            skip = max(skip - len(part), 0)

    def forget(self, channel: Channel) -> None:
        self.channels.pop(channel.id, None)

    def drop(self) -> None:
        """Cuts the connection. What served its channels hears of it in the next round of the loop."""
        if not self.closed:
            self.closed = True
            self.unwatch()
            self._loop.soon(self._teardown)

    def _teardown(self) -> None:
        if self._socket is not None:
            self._socket.close()
        else:
            for fd in set(self._fds):
                os.close(fd)
        while self._descriptors:
            os.close(self._descriptors.popleft())
        for channel in list(self.channels.values()):
            channel.handler.close()
        self._lost(self)

    def watch(self) -> None:
        reader, writer = self._fds
        wanted_in = IN if self.roomy else 0
        wanted_out = OUT if self._out else 0
        if reader == writer:
            self._loop.watch(reader, wanted_in | wanted_out, self._ready)
            return
        self._loop.watch(reader, wanted_in, self._ready)
        if wanted_out:
            self._loop.watch(writer, OUT, self._ready)
        else:
            self._loop.unwatch(writer)

    def unwatch(self) -> None:
        for fd in set(self._fds):
            self._loop.unwatch(fd)

    def _ready(self, events: int) -> None:
        if self._out and events & ~IN:
            self._flush()
        if events & ~OUT and not self.closed:
            self._receive()

    def _flush(self) -> None:
        was_roomy = self.roomy
        try:
            while self._out:
                sent = os.writev(self._fds[1], [self._out[n] for n in range(min(len(self._out), 64))])
                self._out_bytes -= sent
                while sent:
                    part = self._out.popleft()
                    if sent < len(part):
                        self._out.appendleft(memoryview(part)[sent:])
                        break
                    sent -= len(part)
        except BlockingIOError:
            pass
        except OSError:
            self.drop()
            return
        self.watch()
        if not was_roomy and self.roomy:
            for channel in list(self.channels.values()):
                channel.handler.writable()

    def _receive(self) -> None:
        try:
            data = self.read()
        except BlockingIOError:
            return
        except (ProtocolError, OSError):
            self.drop()
            return
        if not data:
            self.drop()
            return
        self._read_size = _LARGE_READ if len(data) >= self._read_size else _SMALL_READ
        self.feed(data)

    def feed(self, data: bytes) -> None:
        """Serves what has come in."""
        try:
            for frame in self._decoder.feed(data):
                self._dispatch(frame)
                if self.closed:
                    return
        except (ProtocolError, OSError):
            # The host is told nothing: it is not our host, or it will see the end of the connection.
            self.drop()
            return
        except Exception as error:  # a fault of ours: it must not take every other connection's commands with it
            report(error)
            self.drop()
            return
        if not self.roomy:
            self.watch()

    def read(self) -> bytes:
        if self._socket is None or not self._brings_descriptors:
            return os.read(self._fds[0], self._read_size)
        space = socket.CMSG_SPACE(MAX_DESCRIPTORS * 4)
        data, ancillary, flags, _ = self._socket.recvmsg(self._read_size, space, socket.MSG_CMSG_CLOEXEC)
        for level, kind, payload in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                whole = payload[: len(payload) - len(payload) % 4]
                self._descriptors.extend(fd for (fd,) in iter_unpack("i", whole))
        if flags & socket.MSG_CTRUNC or len(self._descriptors) > 4 * MAX_DESCRIPTORS:
            raise ProtocolError("too many descriptors")
        return data

    def _dispatch(self, frame: Frame) -> None:
        if not self._greeted:
            if frame.kind is not Kind.HELLO or frame.body.get("version") != VERSION:
                raise ProtocolError("no greeting in our version")
            self._greeted = True
        elif frame.kind is Kind.OPEN:
            self._open(frame)
        elif frame.kind is Kind.HELLO:
            raise ProtocolError("a second greeting")
        elif (channel := self.channels.get(frame.channel)) is not None:
            self._receive_on(channel, frame)
        elif frame.channel > self._last_channel:
            raise ProtocolError("a channel that was never opened")
        # else: it crossed the end of its channel on the way.

    def _receive_on(self, channel: Channel, frame: Frame) -> None:
        try:
            channel.receive(frame)
        except ProtocolError:
            raise
        except Exception as error:
            report(error)
            channel.end(Fault.of(error))
            channel.handler.close()

    def _open(self, frame: Frame) -> None:
        if frame.channel <= self._last_channel:
            raise ProtocolError("channels are numbered upwards")
        self._last_channel = frame.channel
        count = frame.body.pop("fds", 0)
        if type(count) is not int or not 0 <= count <= len(self._descriptors):
            raise ProtocolError("descriptors that were announced did not come")
        descriptors = [self._descriptors.popleft() for _ in range(count)]
        channel = Channel(self, frame.channel)
        try:
            if len(self.channels) >= MAX_CHANNELS:
                raise Fault("sandbox", f"more than {MAX_CHANNELS} channels")
            self.channels[channel.id] = channel
            handler = self._serve(channel, frame.body, descriptors)
            if handler is not None:
                channel.handler = handler
        except ProtocolError:
            raise
        except Exception as error:
            if not isinstance(error, (Fault, OSError, MemoryError)):
                report(error)  # a fault of ours; it ends this request and nothing else
            channel.end(Fault.of(error))
        finally:
            for fd in descriptors:  # what was used has been taken out of the list, or is a child's copy
                os.close(fd)
