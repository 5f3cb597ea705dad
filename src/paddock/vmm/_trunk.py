"""The trunk: connections of services with servers inside the sandbox, over one port (`native/trunk.h`).

The trunk doesn't inspect the content of a connection: its receiver checks it. Each has a separate credit, so a slow one
delays no other. If a guest violates the trunk's protocol, paddock ends the sandbox. Only root of the guest's kernel can
cause that, not an ordinary command.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from struct import Struct

from ._loop import Loop, Outcome
from ._peer import Peer, Stream

_HELLO, _OPEN, _DATA, _CREDIT, _END, _PAUSE, _RESUME = range(1, 8)
_HEADER, _NUMBER = Struct("<IHHI"), Struct("<I")
_VERSION = 1
_BODY = 1 << 15
_WINDOW = 1 << 18
_MOST_CONNECTIONS = 64
_PAUSE_SECONDS = 10.0


class ProtocolError(Exception):
    """A message that our guest program never sends."""


class Trunk:
    """The trunk to a guest.

    `on_violation(message)` runs when the guest violates the protocol.

    It tells the guest at once that there is a new host. It serves connections only after the guest's answer.
    """

    def __init__(self, loop: Loop, port: Stream, on_violation: Callable[[str], None]) -> None:
        self.loop, self._on_violation = loop, on_violation
        self._buffer = bytearray()
        self._connections: dict[int, _Connection] = {}
        self._last = 0
        self._greeted = self._ended = False
        self._paused = False
        self._pending_pauses = 0  # answers to PAUSE that are outstanding
        self._queued: list[bytes] = []
        """Messages for the guest, queued until it may receive them."""
        self._pausing = Outcome()
        self._port = Peer(loop, port, self._received, self._port_closed, self._serve_all)
        self._port.listen(True)
        self._port.send(_frame(_HELLO, 0, _NUMBER.pack(_VERSION)))

    def add(self, name: str, stream: socket.socket) -> None:
        """Add a client, for the server with that name inside."""
        if self._ended or len(self._connections) >= _MOST_CONNECTIONS:
            stream.close()
            return
        self._last += 1
        self._connections[self._last] = connection = _Connection(self, self._last, stream)
        self.send(_OPEN, self._last, name.encode())
        connection.serve()

    # pauses

    def pause(self) -> Outcome:
        """Stop both directions. The outcome comes when no message is under way. `resume` has to follow in any case."""
        self._pausing = self.loop.outcome(_PAUSE_SECONDS, "its pid 1 did not stop sending")
        self._port.send(_frame(_PAUSE, 0))
        self._paused = True
        self._pending_pauses += 1
        self._serve_all()
        return self._pausing

    def resume(self) -> None:
        if self._paused:
            self._paused = False
            self._port.send(_frame(_RESUME, 0))
            self._flush()

    def _flush(self) -> None:
        if self._greeted and not self._paused:
            queued, self._queued = self._queued, []
            for frame in queued:
                self._port.send(frame)
            self._serve_all()

    # for the connections

    @property
    def accepts_data(self) -> bool:
        """Whether connections should read more for the guest."""
        return self._greeted and not self._paused and not self._port.full

    def send(self, kind: int, number: int, body: bytes = b"") -> None:
        frame = _frame(kind, number, body)
        if self._paused or not self._greeted:
            self._queued.append(frame)
        else:
            self._port.send(frame)

    def forget(self, number: int) -> None:
        self._connections.pop(number, None)

    def _serve_all(self) -> None:
        for connection in list(self._connections.values()):
            connection.serve()

    # messages from the guest

    def _received(self, data: bytes) -> None:
        self._buffer += data
        position = 0
        try:
            while len(self._buffer) - position >= _HEADER.size:
                length, kind, zero, number = _HEADER.unpack_from(self._buffer, position)
                if length > _BODY or zero:
                    raise ProtocolError(f"a frame of {length} bytes")
                start = position + _HEADER.size
                if len(self._buffer) - start < length:
                    break
                position = start + length
                self._take(kind, number, bytes(self._buffer[start:position]))
        except ProtocolError as error:
            self._port_closed()
            self._on_violation(f"its pid 1 violated the protocol of its port: {error}")
        del self._buffer[:position]

    def _take(self, kind: int, number: int, body: bytes) -> None:
        if not self._greeted:
            if kind != _HELLO or number or body != _NUMBER.pack(_VERSION):
                raise ProtocolError("no greeting")
            self._greeted = True
            self._flush()
        elif kind == _PAUSE and self._pending_pauses and not number and not body:
            self._pending_pauses -= 1
            if self._paused and not self._pending_pauses:  # else it answers a pause that has been given up
                self._pausing.succeed()
        elif kind not in (_DATA, _CREDIT, _END) or not 0 < number <= self._last:
            raise ProtocolError(f"kind {kind} of connection {number}")
        elif (connection := self._connections.get(number)) is not None:
            connection.take(kind, body)
        else:
            raise ProtocolError(f"connection {number} had ended")

    def _port_closed(self) -> None:
        self._ended = True
        for connection in list(self._connections.values()):
            connection.peer.close()
        self._connections.clear()
        self._pausing.fail("it is gone")


class _Connection:
    """One service's connection. The trunk removes it after END from both sides."""

    def __init__(self, trunk: Trunk, number: int, stream: socket.socket) -> None:
        self._trunk, self._number = trunk, number
        self._credit = self._guest_credit = _WINDOW  # what may be sent to the guest; what it may still send
        self._unsent = bytearray()
        self._received_bytes = 0
        self._client_closed = self._sent_end = self._received_end = False
        self.peer = Peer(trunk.loop, stream, self._received, self._on_client_closed, self._client_drained, high=0)

    def serve(self) -> None:
        """Send as much as allowed, and read on when nothing remains."""
        while self._unsent and self._credit and self._trunk.accepts_data:
            size = min(len(self._unsent), self._credit, _BODY)
            self._trunk.send(_DATA, self._number, bytes(self._unsent[:size]))
            self._credit -= size
            del self._unsent[:size]
        if self._client_closed:
            self._end()
        else:
            self.peer.listen(self._trunk.accepts_data and not self._unsent)

    def take(self, kind: int, body: bytes) -> None:
        if kind == _END:
            self._received_end = True
            self._unsent.clear()
            self._end()
            self._client_drained()
        elif kind == _CREDIT:
            if len(body) != _NUMBER.size:
                raise ProtocolError("a credit of another size")
            self._credit += int(_NUMBER.unpack(body)[0])
            if self._credit > _WINDOW:
                raise ProtocolError("credit for what was not sent")
            self.serve()
        else:
            self._guest_credit -= len(body)
            if not body or self._guest_credit < 0 or self._received_end:
                raise ProtocolError("more than it may send")
            self._received_bytes += len(body)
            self.peer.send(body)
            if not self.peer.full:
                self._client_drained()

    def _received(self, data: bytes) -> None:
        self._unsent += data
        self.serve()

    def _on_client_closed(self) -> None:
        """Send END, after the client's earlier data."""
        self._client_closed = True
        self.serve()

    def _end(self) -> None:
        if not self._unsent and not self._sent_end:
            self._sent_end = True
            self._trunk.send(_END, self._number)
        if self._sent_end and self._received_end:
            self._trunk.forget(self._number)

    def _client_drained(self) -> None:
        """Give credit for what the client has read."""
        if self._received_end:
            if not self.peer.full:
                self.peer.close()
        elif self._received_bytes >= _WINDOW // 2 and not self._sent_end:
            self._trunk.send(_CREDIT, self._number, _NUMBER.pack(self._received_bytes))
            self._guest_credit += self._received_bytes
            self._received_bytes = 0


def _frame(kind: int, number: int, body: bytes = b"") -> bytes:
    return _HEADER.pack(len(body), kind, 0, number) + body
