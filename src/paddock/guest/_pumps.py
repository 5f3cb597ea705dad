"""Bytes between a descriptor inside and a stream of a channel, with credit both ways."""

from __future__ import annotations

import errno
import fcntl
import os
import termios
from collections import deque
from collections.abc import Callable
from struct import unpack

from ._connection import Channel
from ._frames import CHUNK, STDIN, WINDOW
from ._loop import IN, OUT, Loop

_TERMINAL_HOLDS = 256 * 1024


class Source:
    """Sends what can be read from `fd`, then EOF, then calls `finished(error)`. Owns `fd`.

    `poll` is off for regular files, which are always ready.
    """

    def __init__(
        self,
        loop: Loop,
        channel: Channel,
        stream: int,
        fd: int,
        finished: Callable[[OSError | None], None],
        *,
        poll: bool = True,
        limit: int | None = None,
    ) -> None:
        os.set_blocking(fd, False)
        self._loop = loop
        self._channel = channel
        self.stream = stream
        self._fd = fd
        self._finished = finished
        self._poll = poll
        self._limit = limit
        self._until_empty = False
        self._watching = False
        self.done = False
        self.resume()

    def resume(self) -> None:
        if self.done:
            return
        if not self._channel.room(self.stream):
            self._pause()
        elif not self._watching:
            self._watching = True
            if self._poll and not self._until_empty:
                self._loop.watch(self._fd, IN, self._ready)
            else:
                self._loop.soon(self._read)

    def _pause(self) -> None:
        if self._watching:
            self._watching = False
            self._loop.unwatch(self._fd)

    def _ready(self, events: int) -> None:
        self._read()

    def _read(self) -> None:
        if not self._watching:
            return
        size = min(self._channel.room(self.stream), CHUNK)
        if self._limit is not None:
            size = min(size, self._limit)
        if self._limit == 0:
            self.finish(None)
            return
        if not size:
            self._pause()
            return
        try:
            data = os.read(self._fd, size)
        except BlockingIOError:
            if self._until_empty:
                self.finish(None)
            return
        except OSError as error:
            # EIO is how a terminal says that nobody holds its other side.
            self.finish(None if error.errno == errno.EIO and self._poll else error)
            return
        if not data:
            self.finish(None)
            return
        self._channel.send_data(self.stream, data)
        if self._limit is not None:
            self._limit -= len(data)
            if self._limit <= 0:
                self.finish(None)
                return
        if not self._poll or self._until_empty:
            self._loop.soon(self._read)

    def cut(self) -> None:
        """Its writer has died: what is there now is sent, and then it ends, whoever else holds the other side."""
        if self.done:
            return
        if os.isatty(self._fd):
            # FIONREAD does not count what is still on its way through the line discipline; a read waits for that.
            # A terminal holds less than this, so somebody else who keeps writing is cut off.
            self._limit = _TERMINAL_HOLDS
            self._until_empty = True
            self._pause()
            self.resume()
            return
        (self._limit,) = unpack("i", fcntl.ioctl(self._fd, termios.FIONREAD, b"\0\0\0\0"))
        if self._limit:
            self.resume()
        else:
            self.finish(None)

    def finish(self, error: OSError | None) -> None:
        if self.done:
            return
        self.close()
        self._channel.send_eof(self.stream)
        self._finished(error)

    def close(self) -> None:
        if not self.done:
            self.done = True
            self._pause()
            os.close(self._fd)


class Sink:
    """Writes what arrives on stream 0 into `fd`. Owns `fd`; closed at EOF, after the last byte."""

    def __init__(self, loop: Loop, channel: Channel, fd: int, closed: Callable[[], None] | None = None) -> None:
        os.set_blocking(fd, False)
        self._loop = loop
        self._channel = channel
        self._fd = fd
        self._closed = closed
        self._waiting: deque[bytes | memoryview] = deque()
        self._ungranted = 0
        self._ending = False
        self.done = False

    def data(self, data: bytes) -> None:
        if self.done:
            return  # the host was told by EOF; this was under way
        self._waiting.append(data)
        if len(self._waiting) == 1:
            self._write(0)

    def eof(self) -> None:
        self._ending = True
        if not self._waiting:
            self.close()

    def _write(self, events: int) -> None:
        try:
            while self._waiting:
                part = self._waiting[0]
                written = os.write(self._fd, part)
                self._took(written)
                if written < len(part):
                    self._waiting[0] = memoryview(part)[written:]
                else:
                    self._waiting.popleft()
        except BlockingIOError:
            self._loop.watch(self._fd, OUT, self._write)
            return
        except OSError:
            self._channel.send_eof(STDIN)  # nobody reads it any more
            self.close()
            return
        self._loop.unwatch(self._fd)
        if self._ending:
            self.close()

    def _took(self, count: int) -> None:
        self._ungranted += count
        if self._ungranted >= WINDOW // 2:
            self._channel.grant(STDIN, self._ungranted)
            self._ungranted = 0

    def close(self) -> None:
        if not self.done:
            self.done = True
            self._waiting.clear()
            self._loop.unwatch(self._fd)
            os.close(self._fd)
            if self._closed is not None:
                self._closed()
