"""One of those who speak over the switchboard: a descriptor that is read, and written as it takes it."""

from __future__ import annotations

import os
import socket
from collections import deque
from collections.abc import Callable

from ._loop import IN, OUT, Loop

HIGH = 1024 * 1024
"""Bytes that wait for a peer beyond which nothing more is read for it."""
_READ = 256 * 1024


class Peer:
    """Owns the socket. `received(data)`; `gone()` once, when the other side is; `roomy()` when little waits again."""

    def __init__(
        self,
        loop: Loop,
        stream: socket.socket,
        received: Callable[[bytes], None],
        gone: Callable[[], None],
        roomy: Callable[[], None],
    ) -> None:
        stream.setblocking(False)
        self._loop, self._socket = loop, stream
        self._received, self._gone, self._roomy = received, gone, roomy
        self._out: deque[bytes | memoryview] = deque()
        self._reading = False
        self.waiting_bytes = 0
        self.taken_bytes = 0
        """Bytes that it has taken in all."""
        self.closed = False
        self._watched = 0

    @property
    def full(self) -> bool:
        return self.waiting_bytes > HIGH

    def listen(self, wanted: bool) -> None:
        """Whether what it says is read."""
        self._reading = wanted
        self._watch()

    def send(self, data: bytes) -> None:
        if self.closed:
            return
        self._out.append(data)
        self.waiting_bytes += len(data)
        if len(self._out) == 1:
            self._flush()

    def forget_unsent(self) -> None:
        """What was begun is cut off."""
        self._out.clear()
        self.waiting_bytes = 0
        self._watch()

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            self._loop.unwatch(self._socket.fileno())
            self._socket.close()
            self._out.clear()
            self.waiting_bytes = 0

    def _watch(self) -> None:
        if self.closed:
            return
        events = (IN if self._reading else 0) | (OUT if self._out else 0)
        if events != self._watched:
            self._watched = events
            if events:
                self._loop.watch(self._socket.fileno(), events, self._ready)
            else:  # an end that nobody listens to would wake us for ever
                self._loop.unwatch(self._socket.fileno())

    def _ready(self, events: int) -> None:
        if self._out and events & ~IN:
            self._flush()
        if self._reading and events & ~OUT and not self.closed:
            self._receive()

    def _flush(self) -> None:
        was_full = self.full
        try:
            while self._out:
                sent = os.writev(self._socket.fileno(), [self._out[n] for n in range(min(len(self._out), 64))])
                self.waiting_bytes -= sent
                self.taken_bytes += sent
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
            # recv, never recvmsg: descriptors that a guest sends are closed by the kernel, unseen.
            data = self._socket.recv(_READ)
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
