"""HTTP/2 of one connection from inside: each stream is a branch of the connection, with an exchange of its own."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from h2.errors import ErrorCodes

from paddock.model.egress import Target

from ._exchange import Exchange
from ._h2_session import MOST_STREAMS, Broken, Session, StreamTransport
from ._http1 import Fields
from ._wire import Lost

if TYPE_CHECKING:
    from ._connection import Connection

_STREAM_WINDOW = 65_535
_WINDOW = 1 << 20


class Inside:
    """`branches` are the streams that have not ended; `left`: there will be no more."""

    def __init__(self, connection: Connection, target: Target) -> None:
        self._connection, self._target, self._door = connection, target, connection.door
        self.branches: set[Connection] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self.left = False
        self._session = Session(
            connection.wire, self._door.loop, opened=self._opened, window=_STREAM_WINDOW, streams_window=_WINDOW
        )

    async def run(self) -> None:
        """Lost; ends all that it began."""
        wire, connection = self._connection.wire, self._connection
        connection.limit(self._door.limits.keep_alive)
        why: Exception = ConnectionResetError("the client has left")
        try:
            while await wire.more() and not self.left:
                self._session.take()
                await wire.drain()
        except Broken as broken:
            why = broken
        except Lost as lost:
            why = lost
            raise
        finally:
            self._session.lose(why)
            await self._end_all()
        if self.left or isinstance(why, Broken):
            await connection.last_word()
        if isinstance(why, Broken):
            raise Lost(str(why))

    async def _end_all(self) -> None:
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    def leave(self, why: str) -> None:
        """Nothing passes any more: the streams are reset, and the client is told to go."""
        for branch in list(self.branches):
            branch.cut(why)
        self._session.leave()
        self.left = True
        self._connection.wire.stir()

    # -- streams -------------------------------------------------------------------------------------------------------

    def _opened(self, stream: StreamTransport, fields: Fields, ended: bool) -> None:
        door = self._door
        if door.streams >= door.limits.streams or len(self.branches) >= 2 * MOST_STREAMS:
            return stream.reset(ErrorCodes.REFUSED_STREAM)
        stream.asked(fields, ended=ended)
        branch = self._connection.branch(stream)
        exchange = Exchange(branch, self._target, "https")
        self.branches.add(branch)
        door.streams += 1
        self._connection.limit(None)
        task = door.loop.create_task(branch.run(exchange.run))
        self._tasks.add(task)
        task.add_done_callback(lambda task: self._ended(branch, task))

    def _ended(self, branch: Connection, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self.branches.discard(branch)
        self._door.streams -= 1
        if not self.branches:
            self._connection.limit(self._door.limits.keep_alive)
        error = None if task.cancelled() else task.exception()
        if error is not None:  # ours: the stream was ended all the same
            self._door.loop.call_exception_handler({"message": "a stream failed", "exception": error, "task": task})
