"""A line: a stream that outlives whoever speaks on it, and the connection of the moment (see `_mark`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from ._connection import Connection, Serve
from ._frames import Json
from ._loop import Loop
from ._mark import MarkFinder

_PAUSE_SECONDS = 0.05


class LineEnd(NamedTuple):
    """This side's end of a line. That of a `device` seems to end while nobody is at the other one."""

    reader: int
    writer: int
    mark: bytes
    device: bool = False


class Line:
    """Serves one end for as long as the line lives; `ended` is called when it does not any more.

    `anew`: somebody spoke here before, and died.
    """

    def __init__(
        self, loop: Loop, end: LineEnd, serve: Serve, ended: Callable[[], None], *, anew: bool = False
    ) -> None:
        self.loop = loop
        self.end = end
        self.finder = MarkFinder(end.mark)
        self.deaf = anew
        """What comes was not for us, up to the mark that answers ours."""
        self.ended = ended
        self._serve = serve
        self._talk = _Talk(self, serve, marked=anew)

    def begin_anew(self, rest: bytes) -> None:
        """The other side is a new one, which has begun with `rest`."""
        self._talk.hang_up()
        self._talk = _Talk(self, self._serve, marked=True)
        if rest:
            self._talk.feed(rest)


class _Talk(Connection):
    def __init__(self, line: Line, serve: Serve, *, marked: bool) -> None:
        self._line, self._marked = line, marked
        super().__init__(line.loop, (line.end.reader, line.end.writer), serve, lambda _: line.ended())

    def greeting(self) -> Json:
        return {**super().greeting(), "mark": self._line.end.mark.hex()}

    def greet(self) -> None:
        if self._marked:
            self.send(self._line.end.mark)
        super().greet()

    def hang_up(self) -> None:
        """The line stays; all that is open here ends, as with a lost connection."""
        self.closed = True
        self.unwatch()
        for channel in list(self.channels.values()):
            self._line.loop.soon(channel.handler.close)

    def read(self) -> bytes:
        line = self._line
        data = super().read()
        if not data and line.end.device:
            self.unwatch()
            line.loop.after(_PAUSE_SECONDS, self._look_again)
            raise BlockingIOError
        rest = line.finder.after(data)
        if rest is not None and not line.deaf:
            line.begin_anew(rest)
            raise BlockingIOError
        if line.deaf and data:
            line.deaf = rest is None
            if not rest:
                raise BlockingIOError
            return rest
        return data

    def _look_again(self) -> None:
        if not self.closed:
            self.watch()
