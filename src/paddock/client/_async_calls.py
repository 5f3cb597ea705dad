"""Calls on an event loop: one connection for each loop, any number of calls on it at a time."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import weakref
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from paddock.errors import DaemonLost, InvalidState, PaddockError
from paddock.wire import (
    AGAIN,
    MAX_REPLY,
    NO_REPLY,
    Frame,
    Inbox,
    Kind,
    WireError,
    close_all,
    pack,
    receive_some,
    send_some,
)

from ._session import (
    NotTaken,
    Session,
    answered,
    handle_methods,
    lost_call,
    not_started,
    nothing,
    tell,
    too_many_under_way,
)

if TYPE_CHECKING:
    from ._session import Lost, Undo


class AsyncCalls:
    def __init__(self, session: Session) -> None:
        self._session = session
        self.give_up, self.state_dir = session.give_up, session.state_dir
        self._loops: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _Multiplexed] = weakref.WeakKeyDictionary()

    async def call(
        self, handle: int, method: str, *, cancels: bool = True, lost: Lost = lost_call, **fields: Any
    ) -> bytes:
        """A method of a handle; what it returns, encoded."""
        body = handle_methods(handle, method, id=os.urandom(16).hex(), **fields)
        return (await self.ask(body, (), cancels=cancels, lost=lost)).body

    async def ask(
        self,
        body: bytes,
        descriptors: tuple[int, ...],
        *,
        again: bool = True,
        repeatable: bool = False,
        cancels: bool = True,
        undo: Undo = nothing,
        lost: Lost = lost_call,
    ) -> Frame:
        """As `Calls.ask`."""
        problem, flags = "", 0
        for _ in range(2):
            try:
                connection = await self._connected()
            except (OSError, PaddockError) as error:
                if not flags:
                    raise
                problem = str(error)
                break
            try:
                frame = await connection.ask(body, descriptors, cancels=cancels, undo=undo, flags=flags)
                return answered(frame, self.give_up)
            except NotTaken as error:
                problem = str(error)
                continue
            except (OSError, WireError) as error:
                problem = str(error)
            except DaemonLost as error:  # it leaves, or it is the next one
                problem, again = error.message, again and repeatable
                if again and not flags:
                    connection.leaves = True
            flags = AGAIN
            if not again:
                break
        raise lost(problem) if flags else not_started(problem)

    async def _connected(self) -> _Multiplexed:
        loop = asyncio.get_running_loop()
        found = self._loops.get(loop)
        if found is not None and found.is_open:
            return found
        # One of the session's own, which stays: what this process has made lives as long as it, not as this loop.
        connection = await asyncio.to_thread(self._session.take)
        self._session.give_back(connection)
        opened = await asyncio.to_thread(self._session.open_socket)
        found = self._loops.get(loop)
        if found is not None and found.is_open:
            opened.close()
            return found
        for ended in [one for one in self._loops if one.is_closed()]:
            self._loops.pop(ended).close(ConnectionResetError("the event loop was closed"))
        found = self._loops[loop] = _Multiplexed(opened, loop)
        return found


class _Multiplexed:
    """A greeted connection on one event loop."""

    def __init__(self, peer: socket.socket, loop: asyncio.AbstractEventLoop) -> None:
        peer.setblocking(False)
        self._peer, self._loop, self._pid = peer, loop, os.getpid()
        self._inbox = Inbox(MAX_REPLY)
        self._answers: dict[int, asyncio.Future[Frame]] = {}
        self._unsent: deque[tuple[int, memoryview, tuple[int, ...]]] = deque()
        self._channel = 0
        self._closed = False
        self.leaves = False
        """The daemon does: it answers what it has taken, and is asked nothing more."""
        weakref.finalize(self, peer.close)  # not __del__: the collector may finalize the socket of a cycle first
        loop.add_reader(peer.fileno(), self._readable)

    @property
    def is_open(self) -> bool:
        return not self._closed and not self.leaves and self._pid == os.getpid()

    async def ask(
        self, body: bytes, descriptors: tuple[int, ...], *, cancels: bool, undo: Undo, flags: int = 0
    ) -> Frame:
        """OSError, WireError where the connection ends first."""
        self._channel += 1
        channel = self._channel
        answer = self._answers[channel] = self._loop.create_future()
        try:
            self._send(Kind.OPEN, channel, body, descriptors, flags=flags)
            return await asyncio.shield(answer)
        except asyncio.CancelledError:
            if not answer.done() and cancels:
                self._send(Kind.CLOSE, channel, b"")
            if cancels:
                with contextlib.suppress(OSError, WireError):
                    for body in undo(await answer):
                        self._channel += 1
                        self._send(Kind.OPEN, self._channel, body, flags=NO_REPLY)
            raise
        finally:
            del self._answers[channel]

    def close(self, error: Exception) -> None:
        if self._closed:
            return
        self._closed = True
        if self._pid == os.getpid():
            self._loop.remove_reader(self._peer.fileno())
            self._loop.remove_writer(self._peer.fileno())
        self._peer.close()
        self._inbox.close()
        for _, _, descriptors in self._unsent:
            close_all(descriptors)
        unsent = {channel for channel, _, _ in self._unsent}
        self._unsent.clear()
        for channel, answer in self._answers.items():
            if not answer.done():
                answer.set_exception(NotTaken(str(error)) if channel in unsent else error)
                answer.exception()

    def _send(
        self, kind: Kind, channel: int, body: bytes, descriptors: tuple[int, ...] = (), *, flags: int = 0
    ) -> None:
        if self._closed:
            raise NotTaken("the connection to the daemon has ended")
        kept = tuple(map(os.dup, descriptors))  # the caller closes its own when it likes
        frame = pack(kind, channel, body, descriptors=descriptors, flags=flags)
        self._unsent.append((channel, memoryview(frame), kept))
        if len(self._unsent) == 1:
            self._writable()

    def _writable(self) -> None:
        if self._closed:
            return
        try:
            while self._unsent:
                channel, data, descriptors = self._unsent[0]
                sent = send_some(self._peer, data, descriptors)
                close_all(descriptors)
                if sent < len(data):
                    self._unsent[0] = (channel, data[sent:], ())
                else:
                    self._unsent.popleft()
        except BlockingIOError:
            self._loop.add_writer(self._peer.fileno(), self._writable)
            return
        except OSError as error:
            if (refused := too_many_under_way(error)) is None:
                self.close(error)
                return
            channel, _, descriptors = self._unsent.popleft()
            close_all(descriptors)
            if (answer := self._answers.get(channel)) is not None and not answer.done():
                answer.set_exception(refused)
            self._loop.call_soon(self._writable)
            return
        self._loop.remove_writer(self._peer.fileno())

    def _readable(self) -> None:
        try:
            data, descriptors, lost = receive_some(self._peer)
            if not data:
                self.close(ConnectionResetError("the daemon closed the connection"))
                return
            frames = self._inbox.feed(data, descriptors, lost=lost)
        except BlockingIOError:
            return
        except (OSError, WireError) as error:
            self.close(error)
            return
        for frame in frames:
            answer = self._answers.get(frame.channel)
            if frame.kind is Kind.CONTROL:
                tell(frame.body)
            elif frame.kind is Kind.CLOSE:
                self.close(NotTaken("the daemon leaves"))
            elif answer is not None and not answer.done():
                answer.set_result(frame)
                continue
            close_all(frame.descriptors)


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

    def close(self) -> bool:
        """Whether it was open. Who waits for it is told InvalidState."""
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
            raise InvalidState("this stream is closed")
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
