"""Read and write HTTP messages on a stream."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from paddock.gateway.protocols import http1
from paddock.gateway.protocols.http1 import Body, Fields, Request, Response

from .stream import Lost, ProxyStream


class HttpStream(ProxyStream):
    """A stream with messages of HTTP/1.1. `H2Stream` overrides them for HTTP/2."""

    is_grpc = False
    """Whether the client speaks gRPC."""

    def __init__(self, loop: asyncio.AbstractEventLoop, scratch: memoryview) -> None:
        super().__init__(loop, scratch)
        self._head, self._chunked = bytearray(), False

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
                raise Lost("it ended before its answer did")
        return http1.read_response(_taken(self.buffer, end), method)

    def body(self, head: Request | Response) -> Body:
        return Body(head)

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


def _taken(buffer: bytearray, end: int) -> bytes:
    taken = bytes(buffer[:end])
    del buffer[:end]
    return taken
