"""Connections on event loops: one for each loop, any number of calls on it at a time."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import weakref
from collections.abc import Callable
from typing import Any

from paddock.errors import InvalidStateError
from paddock.model import Action
from paddock.wire import MAX_REPLY, NO_REPLY, Frame, Kind, NotSent, close_all, copy_all
from paddock.wire.duplex import Duplex

from ._session import Session, tell, undo_of


class AsyncDaemonConnections:
    def __init__(self, session: Session) -> None:
        self._session = session
        self._loops = weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, AsyncDaemonConnection]()

    async def take(self, previous: AsyncDaemonConnection | None) -> AsyncDaemonConnection:
        """Return the connection of this loop, or a new one in place of a failed `previous`."""
        loop = asyncio.get_running_loop()
        if previous is not None:
            previous.leaves = True
        if (found := self._open(loop)) is not None:
            return found
        # Use one of the session's own connections: sandboxes live as long as this process, not as this loop.
        connection = await asyncio.to_thread(self._session.take)
        self._session.give_back(connection)
        peer = await asyncio.to_thread(self._session.open_socket)
        if (found := self._open(loop)) is not None:
            peer.close()
            return found
        for closed_loop in [known for known in self._loops if known.is_closed()]:
            stale = self._loops.pop(closed_loop)
            stale.why = ConnectionResetError("the event loop was closed")
            stale.close()
        found = self._loops[loop] = AsyncDaemonConnection(peer)
        return found

    def _open(self, loop: asyncio.AbstractEventLoop) -> AsyncDaemonConnection | None:
        found = self._loops.get(loop)
        return found if found is not None and found.is_open else None


class AsyncDaemonConnection(Duplex):
    """A greeted connection on one event loop."""

    def __init__(self, peer: socket.socket) -> None:
        super().__init__(peer, _on_control, lambda connection: None, MAX_REPLY)
        self.leaves = False
        """The daemon is leaving: it answers its present requests, and gets no more."""
        self.expect_answers()
        weakref.finalize(self, peer.close)  # not __del__: the collector may finalize the socket of a cycle first

    @property
    def is_open(self) -> bool:
        return not self.closed and not self.leaves and self._owner == os.getpid()

    def expect_answers(self) -> None:
        if self._pending and not self.closed:
            self.send(Kind.CLOSE, 0)  # a daemon that works refuses it at once
        super().expect_answers()

    async def perform(
        self, body: bytes, descriptors: tuple[int, ...], *, cancels: bool, action: Action[Any] | None, flags: int
    ) -> Frame:
        """Send a request like `ask`.

        A frame with lost descriptors is an answer too, and a cancelled caller has undone its result.
        """
        channel = next(self._channels)
        answer = self._pending[channel] = self._loop.create_future()
        try:
            # The caller closes its own when it likes.
            self.send(Kind.OPEN, channel, body, copy_all(descriptors), flags=flags)
            return await asyncio.shield(answer)
        except asyncio.CancelledError:
            with contextlib.suppress(OSError):
                if not answer.done() and cancels:
                    self.send(Kind.CLOSE, channel)
                for body in undo_of(action, await answer) if cancels else ():
                    self.send(Kind.OPEN, next(self._channels), body, flags=NO_REPLY)
            raise
        finally:
            del self._pending[channel]


def _on_control(connection: Duplex, frame: Frame) -> None:
    close_all(frame.descriptors)
    if frame.kind is Kind.CONTROL:
        tell(frame.body)
    elif frame.kind is Kind.CLOSE:
        connection.why = NotSent("the daemon leaves")
        connection.close()


AsyncMutex = asyncio.Lock


class AsyncPipe:
    """A descriptor that does not block, whose other end is the daemon's. From any event loop."""

    def __init__(self, descriptor: int) -> None:
        os.set_blocking(descriptor, False)
        self._descriptor = descriptor
        self._waiting: dict[asyncio.Future[None], Callable[[int], object]] = {}

    async def read(self, size: int) -> bytes:
        while True:
            try:
                return os.read(self._open(), size)
            except BlockingIOError:
                loop = asyncio.get_running_loop()
                await self._ready(loop.add_reader, loop.remove_reader)

    async def write(self, data: memoryview) -> int:
        while True:
            try:
                return os.write(self._open(), data)
            except BlockingIOError:
                loop = asyncio.get_running_loop()
                await self._ready(loop.add_writer, loop.remove_writer)

    @property
    def closed(self) -> bool:
        return self._descriptor < 0

    def reader(self) -> int:
        """Open the reading end of this pipe: the unread data is still in it (pipe(7))."""
        return os.open(f"/proc/self/fd/{self._open()}", os.O_RDONLY | os.O_CLOEXEC)

    def close(self) -> bool:
        """Close the pipe, and return whether it was open. Waiting callers get InvalidStateError."""
        if self._descriptor < 0:
            return False
        for waiting, remove in tuple(self._waiting.items()):
            remove(self._descriptor)
            if not waiting.done():
                waiting.get_loop().call_soon_threadsafe(_wake, waiting)
        os.close(self._descriptor)
        self._descriptor = -1
        return True

    def _open(self) -> int:
        if self._descriptor < 0:
            raise InvalidStateError("this stream is closed")
        return self._descriptor

    async def _ready(self, add: Callable[..., object], remove: Callable[[int], object]) -> None:
        ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        descriptor = self._open()
        add(descriptor, _wake, ready)
        self._waiting[ready] = remove
        try:
            await ready
        finally:
            del self._waiting[ready]
            if descriptor == self._descriptor:
                remove(descriptor)

    def __del__(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)


def _wake(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
