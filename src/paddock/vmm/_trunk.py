"""The trunk: connections of services with servers inside the sandbox, over one port (`native/lines.h`).

The trunk doesn't inspect the content of a connection: its receiver checks it. Each has a separate credit, so a slow one
delays no other. If a guest violates the trunk's protocol, paddock ends the sandbox. Only root of the guest's kernel can
cause that, not an ordinary command.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from struct import Struct

from ._loop import Loop, Timer
from ._peer import Peer, Stream
from ._place import Done

_HELLO, _OPEN, _DATA, _CREDIT, _END, _STILL, _GO = range(1, 8)
_HEADER, _NUMBER = Struct("<IHHI"), Struct("<I")
_VERSION = 1
_BODY = 1 << 15
_WINDOW = 1 << 18
_MOST_LINES = 64
_QUIET_SECONDS = 10.0


class Offence(Exception):
    """No guest of ours says this."""


class Trunk:
    """The trunk to a guest.

    `offended(words)` runs when the guest violates the protocol.

    It tells the guest at once that there is a new host. It serves connections only after the guest's answer.
    """

    def __init__(self, loop: Loop, port: Stream, offended: Callable[[str], None]) -> None:
        self.loop, self._offended = loop, offended
        self._buffer = bytearray()
        self._lines: dict[int, _Line] = {}
        self._last = 0
        self._greeted = self._ended = False
        self._still: Done | None = None
        self._stands = False
        self._silences = 0  # answers to STILL that are to come
        self._held: list[bytes] = []
        """Messages for the guest, held until it may receive them."""
        self._patience: Timer | None = None
        self._port = Peer(loop, port, self._heard, self._hung_up, self._heed)
        self._port.listen(True)
        self._port.send(_frame(_HELLO, 0, _NUMBER.pack(_VERSION)))

    def add(self, name: str, stream: socket.socket) -> None:
        """Add a client, for the server with that name inside."""
        if self._ended or len(self._lines) >= _MOST_LINES:
            stream.close()
            return
        self._last += 1
        self._lines[self._last] = line = _Line(self, self._last, stream)
        self.say(_OPEN, self._last, name.encode())
        line.heed()

    # standing still

    def stand(self, done: Done) -> None:
        """Stop both directions.

        Call `done(None)` when no message is under way, until `go`, or `done(why)` if the trunk goes on.
        """
        self._still = done
        self._port.send(_frame(_STILL, 0))
        self._stands = True
        self._silences += 1
        self._heed()
        self._patience = self.loop.after(_QUIET_SECONDS, self._impatient)

    def go(self) -> None:
        if self._stands:
            self._stands = False
            self._port.send(_frame(_GO, 0))
            self._go_on()

    def _go_on(self) -> None:
        if self._greeted and not self._stands:
            held, self._held = self._held, []
            for frame in held:
                self._port.send(frame)
            self._heed()

    def _impatient(self) -> None:
        self.go()
        self._stood(f"its pid 1 did not fall silent within {_QUIET_SECONDS:.0f} seconds")

    def _stood(self, why: str | None) -> None:
        done, self._still = self._still, None
        if self._patience is not None:
            self._patience.cancel()
        if done is not None:
            done(why)

    # interface of the lines

    @property
    def takes(self) -> bool:
        """Whether lines should read more for the guest."""
        return self._greeted and not self._stands and not self._port.full

    def say(self, kind: int, number: int, body: bytes = b"") -> None:
        frame = _frame(kind, number, body)
        if self._stands or not self._greeted:
            self._held.append(frame)
        else:
            self._port.send(frame)

    def forget(self, number: int) -> None:
        self._lines.pop(number, None)

    def _heed(self) -> None:
        for line in list(self._lines.values()):
            line.heed()

    # messages from the guest

    def _heard(self, data: bytes) -> None:
        self._buffer += data
        position = 0
        try:
            while len(self._buffer) - position >= _HEADER.size:
                length, kind, zero, number = _HEADER.unpack_from(self._buffer, position)
                if length > _BODY or zero:
                    raise Offence(f"a frame of {length} bytes")
                start = position + _HEADER.size
                if len(self._buffer) - start < length:
                    break
                position = start + length
                self._take(kind, number, bytes(self._buffer[start:position]))
        except Offence as error:
            self._hung_up()
            self._offended(f"its pid 1 said on its line what none of ours says: {error}")
        del self._buffer[:position]

    def _take(self, kind: int, number: int, body: bytes) -> None:
        if not self._greeted:
            if kind != _HELLO or number or body != _NUMBER.pack(_VERSION):
                raise Offence("no greeting")
            self._greeted = True
            self._go_on()
        elif kind == _STILL and self._silences and not number and not body:
            self._silences -= 1
            if self._stands and not self._silences:  # else it answers what was taken back meanwhile
                self._stood(None)
        elif kind not in (_DATA, _CREDIT, _END) or not 0 < number <= self._last:
            raise Offence(f"kind {kind} of connection {number}")
        elif (line := self._lines.get(number)) is not None:
            line.take(kind, body)
        else:
            raise Offence(f"connection {number} had ended")

    def _hung_up(self) -> None:
        self._ended = True
        for line in list(self._lines.values()):
            line.drop()
        self._lines.clear()
        self._stood("it is gone")


class _Line:
    """One service's connection. The trunk removes it after END from both sides."""

    def __init__(self, trunk: Trunk, number: int, stream: socket.socket) -> None:
        self._trunk, self._number = trunk, number
        self._credit = self._due = _WINDOW  # what may be sent to the guest; what it may still send
        self._unsent = bytearray()
        self._taken = 0
        self._gone = self._said_end = self._heard_end = False
        self._peer = Peer(trunk.loop, stream, self._heard, self._left, self._roomy, high=0)

    def heed(self) -> None:
        """Send as much as allowed, and read on when nothing remains."""
        while self._unsent and self._credit and self._trunk.takes:
            size = min(len(self._unsent), self._credit, _BODY)
            self._trunk.say(_DATA, self._number, bytes(self._unsent[:size]))
            self._credit -= size
            del self._unsent[:size]
        if self._gone:
            self._end()
        else:
            self._peer.listen(self._trunk.takes and not self._unsent)

    def drop(self) -> None:
        self._peer.close()

    def take(self, kind: int, body: bytes) -> None:
        if kind == _END:
            self._heard_end = True
            self._unsent.clear()
            self._end()
            self._roomy()
        elif kind == _CREDIT:
            if len(body) != _NUMBER.size:
                raise Offence("a credit that is none")
            self._credit += int(_NUMBER.unpack(body)[0])
            if self._credit > _WINDOW:
                raise Offence("credit for what was not sent")
            self.heed()
        else:
            self._due -= len(body)
            if not body or self._due < 0 or self._heard_end:
                raise Offence("more than it may send")
            self._taken += len(body)
            self._peer.send(body)
            if not self._peer.full:
                self._roomy()

    def _heard(self, data: bytes) -> None:
        self._unsent += data
        self.heed()

    def _left(self) -> None:
        """Note the client's end. Its earlier data still goes to the guest."""
        self._gone = True
        self.heed()

    def _end(self) -> None:
        if not self._unsent and not self._said_end:
            self._said_end = True
            self._trunk.say(_END, self._number)
        if self._said_end and self._heard_end:
            self._trunk.forget(self._number)

    def _roomy(self) -> None:
        """Note that the client has taken all that the guest has said."""
        if self._heard_end:
            if not self._peer.full:
                self._peer.close()
        elif self._taken >= _WINDOW // 2 and not self._said_end:
            self._trunk.say(_CREDIT, self._number, _NUMBER.pack(self._taken))
            self._due += self._taken
            self._taken = 0


def _frame(kind: int, number: int, body: bytes = b"") -> bytes:
    return _HEADER.pack(len(body), kind, 0, number) + body
