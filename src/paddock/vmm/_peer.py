"""A peer of the trunk: a non-blocking descriptor with a write buffer."""

from __future__ import annotations

import os
import socket
from collections import deque
from collections.abc import Callable

from ._loop import IN, OUT, Loop

Stream = socket.socket | tuple[int, int]
"""A socket, or the descriptors of two pipes: one to read, and one to write."""
HIGH = 1024 * 1024
"""Buffered bytes for a peer above which the other side must stop reading for it."""
_READ = 256 * 1024


class Peer:
    """A peer, which owns the stream.

    `received(data)` gets data, and `gone()` runs once when the other side ends.

    `roomy()` runs when its buffer is down to `high` bytes again.
    """

    def __init__(
        self,
        loop: Loop,
        stream: Stream,
        received: Callable[[bytes], None],
        gone: Callable[[], None],
        roomy: Callable[[], None],
        high: int = HIGH,
    ) -> None:
        self._reader, self._writer = stream if isinstance(stream, tuple) else (stream.fileno(), stream.detach())
        for fd in {self._reader, self._writer}:
            os.set_blocking(fd, False)
        self._loop, self._high = loop, high
        self._received, self._gone, self._roomy = received, gone, roomy
        self._out: deque[bytes | memoryview] = deque()
        self._reading = False
        self.waiting_bytes = 0
        self.closed = False
        self._watched: dict[int, int] = {}

    @property
    def full(self) -> bool:
        return self.waiting_bytes > self._high

    def listen(self, wanted: bool) -> None:
        """Start or stop to read from the peer."""
        self._reading = wanted
        self._watch()

    def send(self, data: bytes) -> None:
        if self.closed:
            return
        self._out.append(data)
        self.waiting_bytes += len(data)
        if len(self._out) == 1:
            self._flush()

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            for fd in {self._reader, self._writer}:
                self._loop.unwatch(fd)
                os.close(fd)
            self._out.clear()
            self.waiting_bytes = 0

    def _watch(self) -> None:
        if self.closed:
            return
        wanted = {self._reader: IN if self._reading else 0}
        wanted[self._writer] = wanted.get(self._writer, 0) | (OUT if self._out else 0)
        if wanted == self._watched:
            return
        for fd, events in wanted.items():
            if events == self._watched.get(fd, 0):
                continue
            if events:
                self._loop.watch(fd, events, self._ready_to_read if fd == self._reader else self._ready_to_write)
            else:  # an end without a listener would wake us for ever
                self._loop.unwatch(fd)
        self._watched = wanted

    def _ready_to_read(self, events: int) -> None:
        """Read. If both directions are one descriptor, write as well."""
        if self._out and events & ~IN and self._reader == self._writer:
            self._flush()
        if self._reading and events & ~OUT and not self.closed:
            self._receive()

    def _ready_to_write(self, events: int) -> None:
        self._flush()

    def _flush(self) -> None:
        was_full = self.full
        try:
            while self._out:
                sent = os.writev(self._writer, [self._out[n] for n in range(min(len(self._out), 64))])
                self.waiting_bytes -= sent
                while sent:
                    part = self._out.popleft()
                    if sent < len(part):
                        self._out.appendleft(memoryview(part)[sent:])
                        break
                    sent -= len(part)
        except BlockingIOError:
            pass
        except OSError:
            self._lost()
            return
        self._watch()
        if was_full and not self.full:
            self._roomy()

    def _receive(self) -> None:
        try:
            # read, never recvmsg: then the kernel closes descriptors that a guest sends.
            data = os.read(self._reader, _READ)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if data:
            self._received(data)
        else:
            self._lost()

    def _lost(self) -> None:
        if not self.closed:
            self.close()
            self._loop.soon(self._gone)
