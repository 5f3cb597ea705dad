"""A body on its way: taken from what came, looked through, framed for where it goes."""

from __future__ import annotations

from collections.abc import Callable

from ._http1 import Body, Fields, chunk, last_chunk
from ._redact import Filter


class Stream:
    def __init__(
        self,
        body: Body,
        *,
        filter: Filter | None,
        trailers: Callable[[Fields], Fields],
        begun: bytes = b"",
        watch: Callable[[bytes], None] | None = None,
    ) -> None:
        """`begun`: what was taken of the body before. `watch` sees all of it, and may raise."""
        self._begun, self._watch = begun, watch
        self._body, self._filter, self._trailers = body, filter, trailers
        self.chunked = False
        """Whether it is framed in chunks; to be said before the first `take`."""

    @property
    def done(self) -> bool:
        return self._body.done

    def content(self, buffer: bytearray) -> bytes:
        """What can go on of what came; not to be asked for again when it is `done`."""
        data = self._body.take(buffer)
        if self._begun:
            data, self._begun = self._begun + data, b""
        if self._watch is not None:
            self._watch(data)
        if self._filter is not None:
            data = self._filter.feed(data) if data else b""
            if self._body.done:
                data += self._filter.end()
        return data

    def frame(self, data: bytes) -> bytes:
        if not self.chunked:
            return data
        framed = chunk(data) if data else b""
        return framed + last_chunk(self._trailers(self._body.trailers)) if self._body.done else framed

    def take(self, buffer: bytearray) -> bytes:
        return self.frame(self.content(buffer))

    def end(self) -> None:
        """The connection that it came on has ended. BadMessage: too early."""
        self._body.end()
