"""A connection to a TCP port on the sandbox's own loopback."""

from __future__ import annotations

import errno
import os
import socket

from . import _requests as requests
from ._connection import Channel
from ._faults import Fault
from ._frames import Json
from ._loop import OUT, Loop
from ._relay import Relay

# Numbers, never names: a resolver would load libraries and read files that are the attacker's.
_ADDRESSES = ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1"))


class PortHandler(Relay):
    def __init__(self, loop: Loop, channel: Channel, request: Json) -> None:
        super().__init__(loop, channel)
        self._port = requests.number(request, "port", low=1, high=65535)
        self._left = list(_ADDRESSES)
        self._connecting: socket.socket | None = None
        self._attempt()

    def _attempt(self) -> None:
        number = errno.ECONNREFUSED
        while self._left:
            family, address = self._left.pop(0)
            try:
                self._connecting = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
                number = self._connecting.connect_ex((address, self._port))
            except OSError as error:  # no such family here
                number = error.errno or number
            if self._connecting is not None and number in (0, errno.EINPROGRESS):
                self._loop.watch(self._connecting.fileno(), OUT, self._decided)
                return
            self._drop_attempt()
        name = errno.errorcode.get(number)
        self._channel.end(Fault("file", f"port {self._port}: {os.strerror(number)}", name=name))

    def _decided(self, events: int) -> None:
        assert self._connecting is not None
        self._loop.unwatch(self._connecting.fileno())
        # A reset is an answer: it was connected, and the other side has hung up since. Reader and writer hear of it.
        error = self._connecting.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if error not in (0, errno.ECONNRESET, errno.EPIPE):
            self._drop_attempt()
            self._attempt()
            return
        stream, self._connecting = self._connecting, None
        self.joined(stream)

    def release(self) -> None:
        super().release()
        self._drop_attempt()

    def _drop_attempt(self) -> None:
        if self._connecting is not None:
            self._loop.unwatch(self._connecting.fileno())
            self._connecting.close()
            self._connecting = None
