"""One connection between a service and the gateway, in an event loop."""

from __future__ import annotations

import array
import asyncio
import contextlib
import os
import socket
from collections import deque
from collections.abc import Callable, Sequence

from ._control import MOST_DESCRIPTORS, ControlError, Inbox, Message, Open, encode

_READ_BYTES = 1 << 18


class Channel:
    """`heard(message, descriptors)` takes what comes, `ended()` is called once, when nothing more will. Both are called
    by the loop; what `heard` raises ends the channel as what can't be read does."""

    def __init__(
        self, peer: socket.socket, heard: Callable[[Message, list[int]], None], ended: Callable[[], None]
    ) -> None:
        peer.setblocking(False)
        self._peer, self._heard, self._ended = peer, heard, ended
        self._loop = asyncio.get_running_loop()
        self._inbox = Inbox()
        self._descriptors: list[int] = []
        self._unsent: deque[tuple[memoryview, Sequence[socket.socket]]] = deque()
        self.closed = False
        self._loop.add_reader(peer.fileno(), self._readable)

    def send(self, message: Message, sockets: Sequence[socket.socket] = ()) -> None:
        """Sends it by and by. `sockets` go with it, and are closed here when they have gone."""
        if self.closed:
            raise ConnectionError("the other side has gone")
        self._unsent.append((memoryview(encode(message)), sockets))
        if len(self._unsent) == 1:
            self._write()

    def close(self) -> None:
        """Idempotent."""
        if self.closed:
            return
        self.closed = True
        self._loop.remove_reader(self._peer.fileno())
        self._loop.remove_writer(self._peer.fileno())
        self._peer.close()
        for _, sockets in self._unsent:
            _close(sockets)
        self._unsent.clear()
        while self._descriptors:
            os.close(self._descriptors.pop())
        self._ended()

    def _write(self) -> None:
        try:
            while self._unsent:
                data, sockets = self._unsent[0]
                sent = socket.send_fds(self._peer, [data], [one.fileno() for one in sockets])
                _close(sockets)
                if sent < len(data):
                    self._unsent[0] = (data[sent:], ())
                else:
                    self._unsent.popleft()
        except BlockingIOError:
            self._loop.add_writer(self._peer.fileno(), self._write)
        except OSError:
            self.close()
        else:
            self._loop.remove_writer(self._peer.fileno())

    def _readable(self) -> None:
        try:
            room = socket.CMSG_SPACE(MOST_DESCRIPTORS * 4)
            data, ancillary, _, _ = self._peer.recvmsg(_READ_BYTES, room, socket.MSG_CMSG_CLOEXEC)
        except BlockingIOError:
            return
        except OSError:
            data, ancillary = b"", []
        self._keep(ancillary)
        try:
            messages = self._inbox.feed(data)
            for message in messages:
                self._heard(message, self._taken(message))
        except ControlError:
            data = b""
        if not data:
            self.close()

    def _keep(self, ancillary: list[tuple[int, int, bytes]]) -> None:
        for level, kind, payload in ancillary:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                fds = array.array("i")
                fds.frombytes(payload[: len(payload) - len(payload) % fds.itemsize])
                self._descriptors.extend(fds)

    def _taken(self, message: Message) -> list[int]:
        number = message.sockets if isinstance(message, Open) else 0
        if not 0 <= number <= len(self._descriptors):
            raise ControlError(f"{number} descriptors are announced and {len(self._descriptors)} came")
        taken, self._descriptors = self._descriptors[:number], self._descriptors[number:]
        return taken


def _close(sockets: Sequence[socket.socket]) -> None:
    for one in sockets:
        with contextlib.suppress(OSError):
            one.close()
