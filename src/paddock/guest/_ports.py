"""A connection to a TCP port on the sandbox's own loopback."""

from __future__ import annotations

import contextlib
import errno
import os
import socket

from . import _requests as requests
from ._connection import Channel, Handler
from ._faults import Fault
from ._frames import STDIN, STDOUT, Json
from ._loop import OUT, Loop
from ._pumps import Sink, Source

# Numbers, never names: a resolver would load libraries and read files that are the attacker's.
_ADDRESSES = ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1"))


class PortHandler(Handler):
    def __init__(self, loop: Loop, channel: Channel, request: Json) -> None:
        self._loop = loop
        self._channel = channel
        self._port = requests.number(request, "port", low=1, high=65535)
        self._left = list(_ADDRESSES)
        self._stream: socket.socket | None = None
        self._sink: Sink | None = None
        self._source: Source | None = None
        self._early: list[bytes] = []
        self._early_eof = False
        self._attempt()

    def _attempt(self) -> None:
        number = errno.ECONNREFUSED
        while self._left:
            family, address = self._left.pop(0)
            try:
                self._stream = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
                number = self._stream.connect_ex((address, self._port))
            except OSError as error:  # no such family here
                number = error.errno or number
            if self._stream is not None and number in (0, errno.EINPROGRESS):
                self._loop.watch(self._stream.fileno(), OUT, self._decided)
                return
            self._drop_stream()
        name = errno.errorcode.get(number)
        self._channel.end(Fault("file", f"port {self._port}: {os.strerror(number)}", name=name))

    def _decided(self, events: int) -> None:
        assert self._stream is not None
        self._loop.unwatch(self._stream.fileno())
        # A reset is an answer: it was connected, and the other side has hung up since. Reader and writer hear of it.
        if self._stream.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) not in (0, errno.ECONNRESET, errno.EPIPE):
            self._drop_stream()
            self._attempt()
            return
        self._channel.reply({})
        self._sink = Sink(self._loop, self._channel, os.dup(self._stream.fileno()), self._sent_all)
        self._source = Source(self._loop, self._channel, STDOUT, os.dup(self._stream.fileno()), self._received_all)
        for data in self._early:
            self._sink.data(data)
        self._early.clear()
        if self._early_eof:
            self._sink.eof()

    def data(self, stream: int, data: bytes) -> None:
        if stream != STDIN:
            super().data(stream, data)
        elif self._sink is not None:
            self._sink.data(data)
        else:
            self._early.append(data)  # no more than the window

    def eof(self, stream: int) -> None:
        if stream != STDIN:
            super().eof(stream)
        elif self._sink is not None:
            self._sink.eof()
        else:
            self._early_eof = True

    def writable(self) -> None:
        if self._source is not None:
            self._source.resume()

    def _sent_all(self) -> None:
        if self._stream is not None:
            with contextlib.suppress(OSError):  # reset already: the reader hears of it
                self._stream.shutdown(socket.SHUT_WR)
        self._maybe_end(None)

    def _received_all(self, error: OSError | None) -> None:
        self._maybe_end(error)

    def _maybe_end(self, error: OSError | None) -> None:
        if error is not None or (
            self._sink is not None and self._sink.done and self._source is not None and self._source.done
        ):
            self._release()
            self._channel.end(None if error is None else Fault.of(error))

    def close(self) -> None:
        self._release()
        self._channel.end()

    def _release(self) -> None:
        if self._source is not None:
            self._source.close()
        sink, self._sink = self._sink, None
        if sink is not None:
            sink.close()
        self._drop_stream()

    def _drop_stream(self) -> None:
        if self._stream is not None:
            self._loop.unwatch(self._stream.fileno())
            self._stream.close()
            self._stream = None
