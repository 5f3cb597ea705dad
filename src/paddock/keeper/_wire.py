"""The keeper's own protocol: JSON messages behind a length, over a unix stream that also carries descriptors.

Both ends are ours and run under one uid, so the form is simple; it is bounded and checked all the same, because
the keeper must survive a service that breaks off in the middle.
"""

from __future__ import annotations

import array
import json
import os
import socket
import struct
from collections.abc import Sequence
from typing import Any, cast

VERSION = 4
MAX_MESSAGE = 1 << 20
_HEADER = struct.Struct("!I")
_MAX_DESCRIPTORS = 16


class WireError(Exception):
    """The other side does not speak the keeper's protocol."""


def encode(message: dict[str, Any]) -> bytes:
    body = json.dumps(message, separators=(",", ":")).encode()
    if len(body) > MAX_MESSAGE:
        raise WireError(f"a message of {len(body)} bytes is over the limit of {MAX_MESSAGE}")
    return _HEADER.pack(len(body)) + body


def send(peer: socket.socket, message: dict[str, Any], descriptors: Sequence[int] = ()) -> None:
    """Sends all of it; `peer` is blocking."""
    data = memoryview(encode(message))
    if descriptors:
        sent = socket.send_fds(peer, [data], list(descriptors))
        data = data[sent:]
    if data:
        peer.sendall(data)


class Inbox:
    """Collects bytes and descriptors, gives whole messages. `close` closes the descriptors that nobody took."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self.descriptors: list[int] = []

    def receive(self, peer: socket.socket) -> bool:
        """One read. False at the end of the stream; BlockingIOError as the socket raises it."""
        data, ancillary, _, _ = peer.recvmsg(65536, socket.CMSG_SPACE(_MAX_DESCRIPTORS * 4), socket.MSG_CMSG_CLOEXEC)
        for level, kind, payload in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                fds = array.array("i")
                fds.frombytes(payload[: len(payload) - len(payload) % fds.itemsize])
                self.descriptors.extend(fds)
        self._buffer += data
        return bool(data)

    def messages(self) -> list[dict[str, Any]]:
        """The whole messages received so far. WireError if they are none."""
        found: list[dict[str, Any]] = []
        while len(self._buffer) >= _HEADER.size:
            (length,) = _HEADER.unpack_from(self._buffer)
            if length > MAX_MESSAGE:
                raise WireError(f"a message of {length} bytes is announced, over the limit of {MAX_MESSAGE}")
            end = _HEADER.size + length
            if len(self._buffer) < end:
                break
            try:
                message = json.loads(bytes(self._buffer[_HEADER.size : end]))
            except (ValueError, RecursionError) as error:
                raise WireError(f"a message is not JSON: {error}") from None
            if not isinstance(message, dict):
                raise WireError("a message is not an object")
            found.append(cast("dict[str, Any]", message))
            del self._buffer[:end]
        return found

    def close(self) -> None:
        while self.descriptors:
            os.close(self.descriptors.pop())
