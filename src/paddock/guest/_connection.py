"""The pilot's end of a connection, and the channels on it. The host allocates channels; each is ended exactly once."""

from __future__ import annotations

import os
import socket
from collections import deque
from collections.abc import Callable
from struct import iter_unpack

from ._faults import Fault, report
from ._frames import (
    MAX_BODY,
    OUT,
    WINDOW,
    Decoder,
    Frame,
    Json,
    Kind,
    ProtocolError,
    check_hello,
    dump_json,
    pack,
    pack_hello,
    parse_json,
)
from ._loop import IN, Loop
from ._loop import OUT as WRITABLE

MAX_CHANNELS = 256
MAX_DESCRIPTORS = 16
"""Descriptors that one message may bring; a kernel's limit is far above."""
_READ = 64 * 1024


class Handler:
    """What serves one channel."""

    def close(self) -> None:
        """The host lets go; the handler must end its channel, now or when it has cleaned up."""


Serve = Callable[["Channel", Json, list[int]], Handler | None]


class Channel:
    def __init__(self, connection: Connection, number: int) -> None:
        self.connection = connection
        self.id = number
        self.handler = Handler()
        self.ended = False

    def reply(self, body: Json) -> None:
        if not self.ended:
            self.connection.send(pack(Kind.REPLY, self.id, dump_json(body)))

    def answer(self, body: Json) -> None:
        """The reply and the end. One write: the host is woken once."""
        self._last(pack(Kind.REPLY, self.id, dump_json(body)) + pack(Kind.CLOSE, self.id))

    def pour(self, body: Json) -> None:
        """As a stream, what an answer has no room for. ProtocolError: it has none either."""
        data = dump_json(body)
        if len(data) > WINDOW:
            raise ProtocolError(f"{len(data)} bytes, more than the host has granted")
        parts = [data[at : at + MAX_BODY] for at in range(0, len(data), MAX_BODY)]
        self._last(
            pack(Kind.REPLY, self.id, b"{}")
            + b"".join(pack(Kind.DATA, self.id, part, stream=OUT) for part in parts)
            + pack(Kind.EOF, self.id, stream=OUT)
            + pack(Kind.CLOSE, self.id)
        )

    def conclude(self, body: Json) -> None:
        """The result and the end."""
        self._last(pack(Kind.EXIT, self.id, dump_json(body)) + pack(Kind.CLOSE, self.id))

    def end(self, fault: Fault | None = None) -> None:
        self._last(pack(Kind.CLOSE, self.id) if fault is None else pack(Kind.ERROR, self.id, dump_json(fault.body())))

    def _last(self, data: bytes) -> None:
        """The last word about this channel. Nothing comes of another one."""
        if not self.ended:
            self.connection.send(data)
            self.ended = True
            self.connection.forget(self)


class Connection:
    """Frames over a unix socket, which it owns."""

    def __init__(self, loop: Loop, stream: socket.socket, serve: Serve, lost: Callable[[Connection], None]) -> None:
        stream.setblocking(False)
        self._loop, self._socket, self._serve, self._lost = loop, stream, serve, lost
        self._decoder = Decoder()
        self._greeted = False
        self._last_channel = 0
        self._descriptors: deque[int] = deque()
        self._out = bytearray()
        self.channels: dict[int, Channel] = {}
        self.closed = False
        self._watch()
        self.send(pack_hello(os.getpid()))

    @property
    def unsent(self) -> bool:
        return bool(self._out)

    def send(self, data: bytes) -> None:
        if not self.closed:
            self._out += data
            self._flush()

    def forget(self, channel: Channel) -> None:
        self.channels.pop(channel.id, None)

    def drop(self) -> None:
        """Cuts the connection. What served its channels hears of it in the next round of the loop."""
        if not self.closed:
            self.closed = True
            self._loop.unwatch(self._socket.fileno())
            self._loop.soon(self._teardown)

    def _teardown(self) -> None:
        self._socket.close()
        while self._descriptors:
            os.close(self._descriptors.popleft())
        for channel in list(self.channels.values()):
            channel.handler.close()
        self._lost(self)

    def _watch(self) -> None:
        """While the host does not read, nothing more is read of what it asks."""
        self._loop.watch(self._socket.fileno(), WRITABLE if self._out else IN, self._ready)

    def _ready(self, events: int) -> None:
        if self._out:
            self._flush()
        else:
            self._receive()

    def _flush(self) -> None:
        try:
            sent = self._socket.send(self._out)
            del self._out[:sent]
        except BlockingIOError:
            pass
        except BrokenPipeError:
            # What a host had sent before it left is still served: after it comes the end of the stream.
            self._out.clear()
        except OSError:
            self.drop()
            return
        self._watch()

    def _receive(self) -> None:
        try:
            data = self._read()
            if not data:
                self.drop()
            for frame in self._decoder.feed(data):
                self._dispatch(frame)
                if self.closed:
                    return
        except BlockingIOError:
            pass
        except (ProtocolError, OSError):
            # The host is told nothing: it is not our host, or it will see the end of the connection.
            self.drop()
        except Exception as error:  # a fault of ours: it must not take every other connection along
            report(error)
            self.drop()

    def _read(self) -> bytes:
        space = socket.CMSG_SPACE(MAX_DESCRIPTORS * 4)
        data, ancillary, flags, _ = self._socket.recvmsg(_READ, space, socket.MSG_CMSG_CLOEXEC)
        for level, kind, payload in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                whole = payload[: len(payload) - len(payload) % 4]
                self._descriptors.extend(fd for (fd,) in iter_unpack("i", whole))
        if flags & socket.MSG_CTRUNC or len(self._descriptors) > 4 * MAX_DESCRIPTORS:
            raise ProtocolError("too many descriptors")
        return data

    def _dispatch(self, frame: Frame) -> None:
        if not self._greeted:
            check_hello(frame)
            self._greeted = True
        elif frame.kind is Kind.OPEN:
            self._open(frame)
        elif frame.kind is Kind.HELLO:
            raise ProtocolError("a second greeting")
        elif frame.channel > self._last_channel:
            raise ProtocolError("a channel that was never opened")
        elif frame.kind is Kind.CLOSE and (channel := self.channels.get(frame.channel)) is not None:
            self._close(channel)
        # else: it crossed the end of its channel on the way, or grants what was granted.

    def _close(self, channel: Channel) -> None:
        try:
            channel.handler.close()
        except Exception as error:
            report(error)
            channel.end(Fault.of(error))

    def _open(self, frame: Frame) -> None:
        """An empty request is a ping."""
        if frame.channel <= self._last_channel:
            raise ProtocolError("channels are numbered upwards")
        self._last_channel = frame.channel
        if frame.descriptors > len(self._descriptors):
            raise ProtocolError("descriptors that were announced did not come")
        descriptors = [self._descriptors.popleft() for _ in range(frame.descriptors)]
        channel = Channel(self, frame.channel)
        try:
            request = parse_json(frame.body) if frame.body else {"op": "ping"}
            if len(self.channels) >= MAX_CHANNELS:
                raise Fault("sandbox", f"more than {MAX_CHANNELS} channels")
            self.channels[channel.id] = channel
            handler = self._serve(channel, request, descriptors)
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
