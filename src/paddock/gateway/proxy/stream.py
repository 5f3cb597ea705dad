"""The bytes and the HTTP messages of one connection, both ways, in clear or through TLS, in bounded memory.

This does TLS itself instead of the event loop. It can therefore feed bytes to it from before TLS was certain, send the
alert of a failed handshake, and count the bytes of the connection. It costs as much as asyncio's own.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
import struct
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from enum import Enum
from typing import Any

from paddock.gateway.protocols import http1
from paddock.gateway.protocols.http1 import Body, Fields, Request, Response

HIGH_WATER = 64 << 10
SCRATCH_BYTES = 128 << 10
_RECORD_BYTES = 16 << 10


class ConnectionLost(Exception):
    """The connection broke, or the gateway broke it off."""


class Inbound(Enum):
    """The treatment of incoming bytes."""

    OPEN = "kept"
    PAUSED = "left in the kernel until there is room"
    DISCARDED = "thrown away until the other side ends"
    ENDED = "none: the other side has ended"


class ProxyStream(asyncio.BufferedProtocol):
    """A stream of bytes.

    `buffer` has the incoming ones: a reader takes from it and calls `more` for the next.

    `received` and `sent` count the bytes on the connection itself.
    """

    is_grpc = False
    """Whether the client speaks gRPC."""

    def __init__(
        self, scratch: memoryview, address: str = "", turn: Callable[[], Awaitable[None]] = lambda: asyncio.sleep(0)
    ) -> None:
        """Use `scratch`, which all streams of a loop share, for bytes that the kernel delivers.

        `address`: the checked one of a server. `turn` waits for the next one, after `take_turn`.
        """
        self._turn = turn
        self._loop, self._scratch, self.address = asyncio.get_running_loop(), scratch, address
        self.reused, self.idle_since = False, 0.0
        """Of a server's connection: whether it has carried a request, and since when it waits for the next."""
        self._head, self._chunked = bytearray(), False
        self.buffer = bytearray()
        self._inbound = Inbound.OPEN
        self.error: Exception | None = None
        self.on_room: Callable[[], None] | None = None
        """Runs when a full stream accepts data again."""
        self.received = self.sent = 0
        self._transport: asyncio.Transport | None = None
        self._guarded: ProxyStream | None = None
        self._changed = asyncio.Event()
        self.full = False
        """Whether the other side has not taken enough."""
        self._has_news = self._takes_turn = False
        self._watched = False
        self._tls: ssl.SSLObject | None = None
        self._shaking = False

    async def attach(self, sock: socket.socket) -> None:
        """Take over a connected socket."""
        await self._loop.connect_accepted_socket(lambda: self, sock)

    @property
    def protocol(self) -> str | None:
        """Return the protocol that TLS has agreed on."""
        return None if self._tls is None else self._tls.selected_alpn_protocol()

    @property
    def ended(self) -> bool:
        """Tell whether the other side has ended."""
        return self._inbound is Inbound.ENDED

    @property
    def idle(self) -> bool:
        """Tell whether it is open and nothing has come unasked."""
        return self.error is None and not self.ended and not self.buffer

    # -- reading -----------------------------------------------------------------------------------------------------

    async def more(self) -> bool:
        """Wait for an addition to `buffer` since the last call, or return False at the end. Raises Lost if it broke."""
        self._check()
        if self._takes_turn:
            self._takes_turn = False
            await self._turn()
            self._check()
        if not self._has_news and not self.ended:
            self._flow_on()
        while not self._has_news and not self.ended:
            await self._stirred()
            self._check()
        news, self._has_news = self._has_news, False
        return news

    async def _stirred(self) -> None:
        self._changed.clear()
        await self._changed.wait()

    def _check(self) -> None:
        if self.error is not None:
            raise ConnectionLost(str(self.error)) from self.error

    def stir(self) -> None:
        """End the waiting of `more`."""
        self._has_news = True
        self._changed.set()

    def take_turn(self) -> None:
        """Have `more` return for what is in the buffer, after others had their turn."""
        self._has_news = self._takes_turn = True

    def watch(self, on: bool) -> None:
        """Count an end from the other side as the connection's loss, while `on`: no one reads it."""
        self._watched = on
        if on and self.ended:
            self._lose(ConnectionResetError("the other side has left"))
        elif on:
            self._flow_on()

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._scratch

    def buffer_updated(self, nbytes: int) -> None:
        self._came(self._scratch[:nbytes])

    def _came(self, data: bytes | memoryview) -> None:
        self.received += len(data)
        if self._inbound in (Inbound.DISCARDED, Inbound.ENDED):  # after an end of TLS, its records can still come
            return
        if self._tls is not None:
            self._incoming.write(data)
            self._advance()
        else:
            self.buffer += data
            self._has_news = True
        if len(self.buffer) > HIGH_WATER:
            self._hold()
        self._changed.set()

    def eof_received(self) -> bool:
        self._end()
        return True

    def _end(self) -> None:
        if self.ended:
            return
        self._inbound = Inbound.ENDED
        if self._watched:
            self._lose(ConnectionResetError("the other side has left"))
        self._changed.set()

    def _hold(self) -> None:
        if self._inbound is Inbound.OPEN and self._transport is not None and not self._transport.is_closing():
            self._inbound = Inbound.PAUSED
            self._transport.pause_reading()

    def _flow_on(self) -> None:
        if self._inbound is Inbound.PAUSED and self._transport is not None and not self._transport.is_closing():
            self._inbound = Inbound.OPEN
            self._transport.resume_reading()

    # -- writing -----------------------------------------------------------------------------------------------------

    def write(self, data: bytes | bytearray) -> None:
        """Send `data`, which must not change afterwards: since Python 3.12 the transport keeps the rest uncopied."""
        if self._transport is None or self.error is not None or not data:
            return
        if self._tls is not None:
            self._tls.write(data)
            data = self._outgoing.read()
        self.sent += len(data)
        self._transport.write(data)

    async def drain(self) -> None:
        """Wait until the other side has taken enough. Lost: it broke."""
        self._check()
        while self.full:
            await self._stirred()
            self._check()

    def pause_writing(self) -> None:
        self.full = True

    def resume_writing(self) -> None:
        self.full = False
        self._changed.set()
        if self.on_room is not None:
            self.on_room()

    def write_eof(self) -> None:
        """End writing. Reading goes on."""
        if self._transport is None or self._transport.is_closing():
            return
        if self._tls is not None and not self._shaking:
            self._goodbye()
        try:
            self._transport.write_eof()
        except (OSError, RuntimeError):
            pass  # it is gone already, which the loop tells by itself

    # -- messages of HTTP/1.1, which `H2Stream` overrides for HTTP/2 ---------------------------------------------------

    async def request(self, begun: Callable[[], None]) -> Request | None:
        """Read the next request, or return None at the end.

        It calls `begun` when a request is incomplete. Raises BadMessage.
        """
        has_begun = False
        while (end := http1.head_end(self.buffer)) < 0:
            if self.buffer and not has_begun:
                has_begun = True
                begun()
            if not await self.more():
                return None
        return http1.read_request(_taken(self.buffer, end))

    async def response(self, method: str) -> Response:
        """Read the next response, to a request with `method`. Raises BadMessage and Lost."""
        while (end := http1.head_end(self.buffer)) < 0:
            if not await self.more():
                raise ConnectionLost("it ended before its answer did")
        return http1.read_response(_taken(self.buffer, end), method)

    def body(self, head: Request | Response) -> Body:
        return Body(head, on_turn=self.take_turn)

    def ask(self, request: Request, target: str, host: str) -> None:
        """Begin a request: `target` in origin form, and the checked `host`. It goes out with its first content."""
        self._head, self._chunked = http1.write_request(request, target, host), request.chunked

    def respond(self, response: Response, *, keep_alive: bool, minor: int = 1) -> None:
        """Begin a response, for a client that speaks HTTP/1.`minor`. It goes out with its first content."""
        self._head = http1.write_response(response, keep_alive=keep_alive, minor=minor)
        self._chunked = response.chunked and minor > 0 and not response.bodiless

    def send(self, data: bytes, last: Fields | None = None) -> None:
        """Write content of the current message. `last`: end it with these trailers."""
        if self._chunked:
            data = (http1.chunk(data) if data else b"") + (b"" if last is None else http1.last_chunk(last))
        head, self._head = self._head, bytearray()
        self.write(head + data if head else data)

    def answer(self, response: Response, body: bytes, *, keep_alive: bool) -> None:
        """Write a whole response, whose length is that of its body."""
        self.respond(response, keep_alive=keep_alive)
        self.send(b"" if response.bodiless else body, [])

    # -- passing on ----------------------------------------------------------------------------------------------------

    async def pass_on(self, sink: ProxyStream) -> None:
        """Pass all data from now on to `sink`, with its end. Raise Lost if one of them broke."""
        goes_on = True
        while goes_on:
            data, self.buffer = self.buffer, bytearray()
            sink.write(data)
            await sink.drain()
            goes_on = await self.more()
        sink.write_eof()

    def guard(self, other: ProxyStream | None) -> None:
        """Break off `other` if this stream breaks."""
        self._guarded = other

    # -- TLS -----------------------------------------------------------------------------------------------------------

    async def shake(self, context: ssl.SSLContext, *, name: str | None = None) -> None:
        """Begin TLS, with the content of `buffer` as its first bytes: as a client of `name`, or as a server.

        Raise ssl.SSLError if the handshake fails, after an alert to the other side.
        """
        server = name is None
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=server, server_hostname=name)
        self._incoming.write(self.buffer)
        self.buffer.clear()
        self._shaking = True
        self._advance()
        while self._shaking and self.error is None:
            if self.ended:  # before or since
                self._lose(ConnectionResetError("the connection ended within the TLS handshake"))
            else:
                await self._stirred()
        if isinstance(self.error, ssl.SSLError):
            raise self.error
        self._check()

    def _advance(self) -> None:
        tls = self._tls
        assert tls is not None
        try:
            if self._shaking:
                tls.do_handshake()
                self._shaking = False
            self._decrypt(tls)
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLZeroReturnError:
            self._flush()
            self._end()
            return
        except ssl.SSLError as error:
            self._flush()  # the alert that says why
            self._lose(error)
            return
        self._flush()

    def _decrypt(self, tls: ssl.SSLObject) -> None:
        while True:
            piece = tls.read(_RECORD_BYTES)
            if not piece:
                raise ssl.SSLZeroReturnError
            self.buffer += piece
            self._has_news = True

    def _flush(self) -> None:
        if self._outgoing.pending and self._transport is not None:
            data = self._outgoing.read()
            self.sent += len(data)
            self._transport.write(data)

    def _goodbye(self) -> None:
        try:
            if self._tls is not None:
                self._tls.unwrap()
        except (ssl.SSLError, ValueError):
            pass  # it waits for the other side's, which isn't needed
        self._flush()

    # -- ends ----------------------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        transport.set_write_buffer_limits(high=HIGH_WATER)

    def connection_lost(self, exc: Exception | None) -> None:
        self._lose(exc or ConnectionResetError("closed"))

    def close(self) -> None:
        """Close the stream after sending its pending data."""
        if self._tls is not None and not self._shaking and self.error is None:
            self._goodbye()
        if self._transport is not None:
            self._transport.close()

    def reset(self, why: str = "cut off") -> None:
        """Reset the connection, so that both sides notice at once. It discards bytes under way."""
        transport = self._transport
        if transport is not None:
            sock = transport.get_extra_info("socket")
            if sock is not None and sock.fileno() >= 0:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            transport.abort()
        self._lose(ConnectionAbortedError(why))

    async def linger(self) -> None:
        """Send the end, and discard incoming data until the other side ends too.

        An immediate close could discard the last answer.
        """
        self._flow_on()
        if self._inbound is Inbound.OPEN:
            self._inbound = Inbound.DISCARDED
        self.buffer.clear()
        self.write_eof()
        try:
            while await self.more():
                pass
        except ConnectionLost:
            pass
        self.close()

    def _lose(self, error: Exception) -> None:
        if self.error is not None:
            return
        self.error = error
        if self._guarded is not None:
            self._guarded.reset()
        self._changed.set()


class StoredContent(ProxyStream):
    """Content that the gateway has itself, once from the server at `address`: read piece by piece as from a server."""

    def __init__(self, pieces: Iterator[bytes], address: str, turn: Callable[[], Awaitable[None]]) -> None:
        """Read the first of `pieces`."""
        super().__init__(memoryview(b""), address, turn)
        self._pieces = pieces
        self.buffer += next(pieces, b"")

    async def more(self) -> bool:
        await self._turn()
        self._check()
        piece = next(self._pieces, b"")
        self.buffer += piece
        return bool(piece)


async def together(one: Coroutine[Any, Any, None], other: Coroutine[Any, Any, None]) -> None:
    """Run both until they have ended, or one raises."""
    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(one)
            group.create_task(other)
    except ExceptionGroup as failed:
        raise failed.exceptions[0] from None


def _taken(buffer: bytearray, end: int) -> bytes:
    taken = bytes(buffer[:end])
    del buffer[:end]
    return taken
