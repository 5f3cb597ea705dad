"""Read and write HTTP messages on a stream."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias

from paddock.gateway.protocols.http1 import (
    Body,
    Fields,
    Request,
    Response,
    chunk,
    head_end,
    last_chunk,
    read_request,
    read_response,
    write_request,
    write_response,
)

from .stream import Lost, ProxyStream

if TYPE_CHECKING:
    from .h2_session import H2Stream

Http: TypeAlias = "Http1 | H2Stream"


class Http1:
    """One side's messages. `H2Stream` has the same methods for those of HTTP/2."""

    def __init__(self, stream: ProxyStream) -> None:
        self._stream = stream
        self._head, self._chunked = bytearray(), False

    async def request(self, begun: Callable[[], None]) -> Request | None:
        """Read the next request, or return None at the end.

        It calls `begun` when a request is incomplete. Raises BadMessage.
        """
        stream, has_begun = self._stream, False
        while (end := head_end(stream.buffer)) < 0:
            if stream.buffer and not has_begun:
                has_begun = True
                begun()
            if not await stream.more():
                return None
        return read_request(_taken(stream.buffer, end))

    async def response(self, method: str) -> Response:
        """Read the next response, to a request with `method`. Raises BadMessage and Lost."""
        stream = self._stream
        while (end := head_end(stream.buffer)) < 0:
            if not await stream.more():
                raise Lost("it ended before its answer did")
        return read_response(_taken(stream.buffer, end), method)

    def body(self, head: Request | Response) -> Body:
        answers = isinstance(head, Response)
        return Body(head, to_the_end=answers, extensions=answers)

    def ask(self, request: Request, target: str, host: str) -> None:
        """Begin a request: `target` in origin form, and the checked `host`. It goes out with its first content."""
        self._head, self._chunked = write_request(request, target, host), request.chunked

    def respond(self, response: Response, *, keep_alive: bool, minor: int = 1) -> None:
        """Begin a response, for a client that speaks HTTP/1.`minor`. It goes out with its first content."""
        self._head = write_response(response, keep_alive=keep_alive, minor=minor)
        self._chunked = response.chunked and minor > 0 and not response.bodiless

    def send(self, data: bytes, last: Fields | None = None) -> None:
        """Write content of the current message. `last`: end it with these trailers."""
        if self._chunked:
            data = (chunk(data) if data else b"") + (b"" if last is None else last_chunk(last))
        head, self._head = self._head, bytearray()
        self._stream.write(head + data if head else data)


def _taken(buffer: bytearray, end: int) -> bytes:
    taken = bytes(buffer[:end])
    del buffer[:end]
    return taken


def answer(http: Http, response: Response, body: bytes, *, keep_alive: bool, minor: int = 1) -> None:
    """Write a whole response, whose length is that of its body."""
    http.respond(response, keep_alive=keep_alive, minor=minor)
    http.send(b"" if response.bodiless else body, [])
