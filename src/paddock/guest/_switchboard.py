"""The switchboard: one guest's agent, as many services as there are; channel numbers are rewritten between them.

Whole frames only go from one to the other, so that a service that dies leaves no half one behind. What a frame holds
nobody looks at here: whoever it is for checks it.
"""

from __future__ import annotations

import socket
from struct import Struct

from ._frames import (
    HEADER_BYTES,
    MAX_PAYLOAD,
    MAX_REQUEST,
    VERSION,
    Json,
    Kind,
    ProtocolError,
    pack,
    pack_close,
    parse_json,
)
from ._loop import Loop
from ._mark import MARK_BYTES, MarkFinder
from ._peer import Peer, Stream

_HEADER = Struct("!IBI")
_LAST_WORDS = (Kind.CLOSE, Kind.ERROR)
_OF_HOSTS = (Kind.OPEN, Kind.CONTROL)
_OFFENCE = _HEADER.pack(0, 0, 0)
"""A frame that no guest may send, in place of the one that it has sent: whoever gets it knows what to think."""
_PATIENCE_SECONDS = 5.0


class Splitter:
    """Bytes in, frames out: kind, channel, payload. Only the headers are looked at. ProtocolError."""

    def __init__(self, request_bytes: int = MAX_PAYLOAD) -> None:
        self._buffer = bytearray()
        self._request_bytes = request_bytes

    def feed(self, data: bytes) -> list[tuple[int, int, bytes]]:
        buffer = self._buffer
        buffer += data
        frames: list[tuple[int, int, bytes]] = []
        position, end = 0, len(buffer)
        while end - position >= HEADER_BYTES:
            length, kind, channel = _HEADER.unpack_from(buffer, position)
            if not Kind.HELLO <= kind <= Kind.CLOSE or (channel == 0) != (kind == Kind.HELLO):
                raise ProtocolError(f"kind {kind} on channel {channel}")
            if length > (self._request_bytes if kind == Kind.OPEN else MAX_PAYLOAD):
                raise ProtocolError(f"a frame of {length} bytes")
            start = position + HEADER_BYTES
            if end - start < length:
                break
            position = start + length
            frames.append((kind, channel, bytes(buffer[start:position])))
        del buffer[:position]
        return frames


class Board:
    """The line to one agent inside. `mark`: the guest has spoken before, to another pilot."""

    def __init__(self, loop: Loop, line: Stream, mark: bytes | None = None) -> None:
        self.loop = loop
        self.hello: Json | None = None
        """What the guest has greeted with; before that nobody is served."""
        self.mark: bytes | None = mark
        self._finder = None if mark is None else MarkFinder(mark)
        self._deaf = mark is not None
        self._broken = False
        self._ended = False
        self._splitter = Splitter()
        self._services: set[_Service] = set()
        self._routes: dict[int, tuple[_Service | None, int]] = {}
        self._last_channel = 0
        self._line = Peer(loop, line, self._heard, self._hung_up, self.heed_services)
        self._line.listen(True)
        self._greet()

    def add(self, stream: socket.socket) -> None:
        """A service more. It is served as soon as the guest has greeted."""
        service = _Service(self, stream)
        self._services.add(service)
        if self._broken or self._ended:
            if self._broken:
                service.send(_OFFENCE)
            service.leave()
        elif self.hello is not None:
            service.greet(self.hello)

    def begin_anew(self) -> None:
        """Ends all that is open, on both sides."""
        self._reset()
        self._deaf = True
        self._greet()

    # what services do

    @property
    def full(self) -> bool:
        return self._line.full

    def open(self, service: _Service, own: int) -> int:
        self._last_channel += 1
        self._routes[self._last_channel] = (service, own)
        return self._last_channel

    def send(self, data: bytes) -> None:
        self._line.send(data)
        if self.full:
            self.heed_services()

    def gone(self, service: _Service, left_open: list[tuple[int, bool]]) -> None:
        """`left_open`: channels of the guest's, and whether it has been told already that nobody wants them."""
        self._services.discard(service)
        for channel, told in left_open:
            if channel in self._routes:
                self._routes[channel] = (None, 0)
                if not told:
                    self._line.send(pack_close(channel))
        self.heed_guest()

    def heed_services(self) -> None:
        """Reads from them while the guest takes what they say."""
        for service in self._services:
            service.heed()

    def heed_guest(self) -> None:
        """Reads from the guest while they all take what it says."""
        self._line.listen(not any(service.full for service in self._services))

    # what the guest does

    def _greet(self) -> None:
        if self._deaf and self.mark is not None:
            self._line.send(self.mark)
        self._line.send(pack(Kind.HELLO, 0, {"version": VERSION}))

    def _heard(self, data: bytes) -> None:
        if self._finder is not None:
            rest = self._finder.after(data)
            if rest is not None:
                answered, self._deaf = self._deaf, False
                if not answered:  # it is another agent, which waits for our mark
                    self._reset()
                    assert self.mark is not None
                    self._line.send(self.mark)
                    self._greet()
                data = rest
        if self._deaf or self._broken or self._ended:
            return
        try:
            for frame in self._splitter.feed(data):
                self._pass_on(*frame)
        except ProtocolError:
            self._offended()
        if any(service.full for service in self._services):
            self.heed_guest()

    def _pass_on(self, kind: int, channel: int, payload: bytes) -> None:
        if self.hello is None:
            self._greeted(kind, payload)
            return
        route = self._routes.get(channel)
        if route is None or kind in _OF_HOSTS:
            raise ProtocolError(f"kind {kind} on channel {channel}")
        service, own = route
        if kind in _LAST_WORDS:
            del self._routes[channel]
        if service is not None:
            if kind in _LAST_WORDS:
                service.ended(own)
            service.send(_HEADER.pack(len(payload), kind, own) + payload)

    def _greeted(self, kind: int, payload: bytes) -> None:
        if kind != Kind.HELLO:
            raise ProtocolError("no greeting")
        body = parse_json(payload)
        try:
            mark = bytes.fromhex(body.pop("mark", ""))
        except (TypeError, ValueError):
            raise ProtocolError("a mark that is none") from None
        if body.get("version") != VERSION or len(mark) != MARK_BYTES:
            raise ProtocolError(f"no greeting in version {VERSION}")
        if mark != self.mark:
            self.mark, self._finder = mark, MarkFinder(mark)
        body["features"] = [name for name in body.get("features", ()) if name != "descriptors"]
        self.hello = body
        for service in list(self._services):
            service.greet(body)

    def _offended(self) -> None:
        """It lies. Services are told so; who comes later is served if it begins anew."""
        for service in list(self._services):
            service.send(_OFFENCE)
        self._reset()
        if self.mark is None:
            self._broken = True
            return
        self._deaf = True
        self._greet()

    def _hung_up(self) -> None:
        """Nobody lied: whoever comes now finds nobody there."""
        self._reset()
        self._ended = True

    def _reset(self) -> None:
        self.hello = None
        self._splitter = Splitter()
        self._routes.clear()
        self._last_channel = 0
        self._line.forget_unsent()
        for service in list(self._services):
            service.leave()


class _Service:
    def __init__(self, board: Board, stream: socket.socket) -> None:
        self._board = board
        self._splitter = Splitter(MAX_REQUEST)
        self._channels: dict[int, tuple[int, bool]] = {}
        """By its own number: the guest's, and whether it has let go of it."""
        self._last_channel = 0
        self._greeted = False
        self._serving = False
        self._left = False
        self._peer = Peer(board.loop, stream, self._heard, self.leave, board.heed_guest)

    @property
    def full(self) -> bool:
        return self._peer.full

    def greet(self, hello: Json) -> None:
        self._serving = True
        self._peer.send(pack(Kind.HELLO, 0, hello))
        self.heed()

    def heed(self) -> None:
        if self._serving:
            self._peer.listen(not self._board.full)

    def send(self, data: bytes) -> None:
        was_full = self._peer.full
        self._peer.send(data)
        if self._peer.full and not was_full:
            self._wait(self._peer.taken_bytes)

    def ended(self, own: int) -> None:
        self._channels.pop(own, None)

    def leave(self) -> None:
        if not self._left:
            self._left = True
            self._peer.close()
            self._board.gone(self, list(self._channels.values()))

    def _wait(self, taken: int) -> None:
        """One that takes nothing at all must not keep the others from the guest for long."""

        def look() -> None:
            if self._peer.full and not self._left:
                if self._peer.taken_bytes == taken:
                    self.leave()
                else:
                    self._wait(self._peer.taken_bytes)

        self._board.loop.after(_PATIENCE_SECONDS, look)

    def _heard(self, data: bytes) -> None:
        try:
            for kind, channel, payload in self._splitter.feed(data):
                if self._left:
                    return
                self._take(kind, channel, payload)
        except ProtocolError:
            self.leave()

    def _take(self, kind: int, channel: int, payload: bytes) -> None:
        if not self._greeted:
            if kind != Kind.HELLO or parse_json(payload).get("version") != VERSION:
                raise ProtocolError("no greeting in our version")
            self._greeted = True
            return
        if kind == Kind.OPEN:
            if channel <= self._last_channel:
                raise ProtocolError("channels are numbered upwards")
            self._last_channel = channel
            self._channels[channel] = (self._board.open(self, channel), False)
        elif channel > self._last_channel or kind == Kind.HELLO:
            raise ProtocolError("a channel that was never opened")
        known = self._channels.get(channel)
        if known is None:
            return  # it crossed the end of its channel on the way
        if kind == Kind.CLOSE:
            self._channels[channel] = (known[0], True)
        self._board.send(_HEADER.pack(len(payload), kind, known[0]) + payload)
