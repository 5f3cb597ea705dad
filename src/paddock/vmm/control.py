"""Requests of services to the controller, in the frames of `paddock.wire`: OPEN, and REPLY or ERROR as its answer.

A body is JSON. A request has its `op`. An error has `code`, `message` and perhaps the name of an `errno`.

The first connection begins with the controller's orders: a length of four bytes, and JSON. They contain secrets, so
they aren't on the command line, which all users of the machine can read (proc(5)).
"""

from __future__ import annotations

import errno
import json
import os
import socket
from collections.abc import Callable

from paddock.wire import Inbox, Kind, WireError, close_all, pack, receive_some

from ._loop import IN, OUT, Loop, report

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from paddock.wire import Frame

Json = dict[str, "Any"]
MOST_BYTES = 4 << 20
"""Bytes of a request, and of an answer."""
_MAX_MESSAGE = 2000
_LENGTH_BYTES = 4


def pack_orders(orders: Json) -> bytes:
    text = json.dumps(orders).encode()
    return len(text).to_bytes(_LENGTH_BYTES, "big") + text


def read_orders() -> Json:
    """Read the controller's orders from its standard input. Raises ConnectionError if the sender has gone."""
    return json.loads(_read(int.from_bytes(_read(_LENGTH_BYTES), "big")))


def _read(count: int) -> bytes:
    data = bytearray()
    while len(data) < count:
        part = os.read(0, count - len(data))
        if not part:
            raise ConnectionError("who was to say what is to be done has gone")
        data += part
    return bytes(data)


class Fault(Exception):
    """A refusal.

    `code` is a wire code of paddock's errors. `name` is the kernel's error name, if the kernel refused.
    """

    def __init__(self, code: str, message: str, *, name: str | None = None) -> None:
        super().__init__(message)
        self.code, self.message, self.name = code, message, name

    @classmethod
    def of(cls, error: BaseException) -> Fault:
        if isinstance(error, Fault):
            return error
        if isinstance(error, OSError) and error.errno is not None:
            name = errno.errorcode.get(error.errno, str(error.errno))
            return cls("file", os.strerror(error.errno), name=name)
        return cls("sandbox", f"{type(error).__name__}: {error}")


class Control:
    """One service's connection, which owns the socket.

    `serve(control, id, request, descriptors)` returns the answer, or None to answer later.

    It closes the descriptors that remain in the list.
    """

    def __init__(
        self,
        loop: Loop,
        stream: socket.socket,
        serve: Callable[[Control, int, Json, list[int]], Json | None],
        lost: Callable[[Control], None],
    ) -> None:
        stream.setblocking(False)
        self._loop, self._stream, self._serve, self._lost = loop, stream, serve, lost
        self._inbox, self._out = Inbox(MOST_BYTES), bytearray()
        self._closed = False
        self._watch()

    @property
    def unsent(self) -> bool:
        return bool(self._out)

    def answer(self, id: int, answer: Json) -> None:
        self._send(Kind.REPLY, id, answer)

    def refuse(self, id: int, error: BaseException) -> None:
        fault = Fault.of(error)
        self._send(Kind.ERROR, id, {"code": fault.code, "message": fault.message[:_MAX_MESSAGE], "errno": fault.name})

    def _send(self, kind: Kind, id: int, body: Json) -> None:
        if not self._closed:
            self._out += pack(kind, id, json.dumps(body).encode())
            self._flush()

    def _watch(self) -> None:
        """While the service doesn't read its answers, this reads no more of its requests."""
        self._loop.watch(self._stream.fileno(), OUT if self._out else IN, self._ready)

    def _ready(self, events: int) -> None:
        if self._out:
            self._flush()
        else:
            self._receive()

    def _flush(self) -> None:
        try:
            del self._out[: self._stream.send(self._out)]
        except BlockingIOError:
            pass
        except OSError:  # what it had sent before it left is still served: after it comes the end of the stream
            self._out.clear()
        self._watch()

    def _receive(self) -> None:
        try:
            data, descriptors, lost = receive_some(self._stream)
            for frame in self._inbox.feed(data, descriptors, lost=lost):
                self._take(frame)
        except BlockingIOError:
            return
        except (OSError, WireError):  # it isn't our daemon
            data = b""
        if not data:
            self._hang_up()

    def _take(self, frame: Frame) -> None:
        descriptors = list(frame.descriptors)
        try:
            answer = self._serve(self, frame.channel, json.loads(frame.body), descriptors)
            if answer is not None:
                self.answer(frame.channel, answer)
        except Exception as error:
            if not isinstance(error, (Fault, OSError)):
                report(error)  # a fault of ours; it ends this request and nothing else
            self.refuse(frame.channel, error)
        finally:
            close_all(descriptors)

    def _hang_up(self) -> None:
        self._closed = True
        self._out.clear()
        self._loop.unwatch(self._stream.fileno())
        self._stream.close()
        self._inbox.close()
        self._lost(self)
