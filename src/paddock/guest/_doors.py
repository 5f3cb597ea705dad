"""Doors: unix sockets inside whose callers are put through to the host, one channel for each caller.

The host asks for callers ahead; while it holds a channel of a door, waiting or put through, the door is open.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections import deque
from collections.abc import Callable

from . import _requests as requests
from ._config import AgentConfig
from ._connection import Channel
from ._faults import Fault
from ._frames import Json
from ._loop import IN, Loop
from ._relay import Relay

_BACKLOG = 16
_LONGEST = 100  # sun_path holds 108 bytes
MOST = 8


class Doors:
    def __init__(self, loop: Loop, config: AgentConfig) -> None:
        self._loop, self._config = loop, config
        self._open: dict[bytes, _Door] = {}

    def accept(self, channel: Channel, request: Json) -> AcceptHandler:
        """Serves the next one who comes to the door at `path`, which is opened if it is not open."""
        path = requests.path(request, "path", self._config)
        door = self._open.get(path)
        if door is None:
            if len(self._open) >= MOST:
                raise Fault("sandbox", f"more than {MOST} doors")
            door = self._open[path] = _Door(self._loop, path)
        return AcceptHandler(self._loop, channel, door, self._left)

    def _left(self, door: _Door) -> None:
        if not door.handlers:
            self._open.pop(door.path, None)
            door.close()


class _Door:
    def __init__(self, loop: Loop, path: bytes) -> None:
        if len(path) > _LONGEST:
            raise Fault("file", f"the path of a door has at most {_LONGEST} bytes", name="ENAMETOOLONG")
        self.path = path
        self.handlers: set[AcceptHandler] = set()
        self.waiting: deque[AcceptHandler] = deque()
        self._loop = loop
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        self._watched = False
        try:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)
            self._listener.bind(path)
            os.chmod(path, 0o600)
            self._listener.listen(_BACKLOG)
        except OSError as error:
            self._listener.close()
            raise Fault.of(error) from None

    def watch(self) -> None:
        """Looks for callers while somebody waits for one; the others stand in the kernel's queue."""
        if bool(self.waiting) == self._watched:
            return
        self._watched = not self._watched
        if self._watched:
            self._loop.watch(self._listener.fileno(), IN, self._came)
        else:
            self._loop.unwatch(self._listener.fileno())

    def _came(self, events: int) -> None:
        try:
            stream, _ = self._listener.accept()
        except OSError:  # gone again, or we are short of descriptors
            return
        stream.setblocking(False)
        self.waiting.popleft().received(stream)
        self.watch()

    def close(self) -> None:
        self.waiting.clear()
        self.watch()
        self._listener.close()
        with contextlib.suppress(OSError):
            os.unlink(self.path)


class AcceptHandler(Relay):
    def __init__(self, loop: Loop, channel: Channel, door: _Door, left: Callable[[_Door], None]) -> None:
        super().__init__(loop, channel)
        self._door, self._left = door, left
        door.handlers.add(self)
        door.waiting.append(self)
        door.watch()

    def received(self, stream: socket.socket) -> None:
        try:
            self.joined(stream)
        except OSError as error:  # short of descriptors
            self.release()
            self._channel.end(Fault.of(error))

    def release(self) -> None:
        super().release()
        if self in self._door.handlers:
            self._door.handlers.discard(self)
            if self in self._door.waiting:
                self._door.waiting.remove(self)
                self._door.watch()
            self._left(self._door)
