"""A channel that is a socket: what the host writes goes out of it, what comes in is read by the host."""

from __future__ import annotations

import contextlib
import os
import socket

from ._connection import Channel, Handler
from ._faults import Fault
from ._frames import STDIN, STDOUT
from ._loop import Loop
from ._pumps import Sink, Source


class Relay(Handler):
    """Subclasses find the socket and call `joined` with it, once, after the reply. Before that what comes is kept."""

    def __init__(self, loop: Loop, channel: Channel) -> None:
        self._loop = loop
        self._channel = channel
        self._stream: socket.socket | None = None
        self._sink: Sink | None = None
        self._source: Source | None = None
        self._early: list[bytes] = []
        self._early_eof = False

    def joined(self, stream: socket.socket) -> None:
        """The stream is the relay's from now on; it does not block."""
        self._stream = stream
        self._channel.reply({})
        self._sink = Sink(self._loop, self._channel, os.dup(stream.fileno()), self._sent_all)
        self._source = Source(self._loop, self._channel, STDOUT, os.dup(stream.fileno()), self._received_all)
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
            self.release()
            self._channel.end(None if error is None else Fault.of(error))

    def close(self) -> None:
        self.release()
        self._channel.end()

    def release(self) -> None:
        """Whatever it holds. Idempotent."""
        if self._source is not None:
            self._source.close()
        sink, self._sink = self._sink, None
        if sink is not None:
            sink.close()
        stream, self._stream = self._stream, None
        if stream is not None:
            stream.close()
