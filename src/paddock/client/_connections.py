"""Connections and pipes that block: no event loop and no thread."""

from __future__ import annotations

import os
from _thread import allocate_lock

from paddock.errors import InvalidStateError
from paddock.wire import NO_REPLY, Connection, Frame, Kind, NotSent, WireError, close_all

from ._session import tell, too_many_under_way, undo_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from paddock.model import Action

    from ._session import Session


class DaemonConnections:
    def __init__(self, session: Session) -> None:
        self._session = session

    def take(self, previous: DaemonConnection | None) -> DaemonConnection:
        """Return a connection for one call: a new one after a failed `previous`."""
        return DaemonConnection(self._session, self._session.take() if previous is None else self._session.open())


class DaemonConnection:
    """A greeted connection of a session, and one call on it.

    If an exception of a signal handler (such as Ctrl-C) interrupts a call, this cancels the call. It raises the
    exception after the daemon has undone the call. A second exception doesn't wait for that.
    """

    def __init__(self, session: Session, connection: Connection) -> None:
        self._session, self._connection = session, connection

    def perform(
        self, body: bytes, descriptors: tuple[int, ...], *, cancels: bool, action: Action[Any] | None, flags: int
    ) -> Frame:
        """Return the answer, ERROR too. Raises NotSent, and OSError or WireError if the outcome isn't known."""
        connection = self._connection
        channel = connection.next_channel()
        is_sent = False
        try:
            connection.send(Kind.OPEN, channel, body, descriptors=descriptors, flags=flags)
            is_sent = True
            frame = self._answer(channel)
        except (OSError, WireError) as error:
            if too_many_under_way(error) is not None:
                self._session.give_back(connection)
                raise
            connection.close()
            if is_sent:
                raise
            raise NotSent(str(error)) from None
        except BaseException:
            self._interrupted(channel, cancels, action)
            raise
        self._session.give_back(connection)
        return frame

    def _answer(self, channel: int) -> Frame:
        while (frame := self._receive()) is not None:
            if frame.channel == channel and frame.kind is not Kind.CONTROL:
                return frame
            if frame.kind is Kind.CONTROL and frame.channel == channel:
                tell(frame.body)
            if frame.kind is Kind.CLOSE:
                raise NotSent("the daemon leaves")
            close_all(frame.descriptors)
        raise ConnectionResetError

    def _receive(self) -> Frame | None:
        """Return the next frame. Raises ConnectionResetError if the daemon hangs: else it refuses a CLOSE at once."""
        for _ in range(3):
            try:
                return self._connection.receive()
            except BlockingIOError:
                self._connection.send(Kind.CLOSE, 0)
        raise ConnectionResetError("the daemon hangs")

    def _interrupted(self, channel: int, cancels: bool, action: Action[Any] | None) -> None:
        """Cancel the request and wait for its undo. An exception in here ends the wait, and the connection."""
        frame, connection = None, self._connection
        try:
            if cancels:
                connection.unread()
                connection.send(Kind.CLOSE, channel)
                frame = self._answer(channel)
        except (OSError, WireError):
            pass
        finally:
            if frame is None:
                connection.close()  # a request that the daemon is not told to cancel by name ends with its connection
        if frame is not None:
            for body in undo_of(action, frame):
                connection.send(Kind.OPEN, connection.next_channel(), body, flags=NO_REPLY)
            self._session.give_back(connection)


Mutex = allocate_lock


class Pipe:
    """A descriptor with the daemon at the other end.

    One thread may close it while another reads. It closes after its last use by a thread, so its number never means
    another file in between.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._lock = allocate_lock()
        self._users = 0
        self.closed = False

    def read(self, size: int) -> bytes:
        return self._used(lambda descriptor: os.read(descriptor, size))

    def write(self, data: bytes | memoryview) -> int:
        return self._used(lambda descriptor: os.write(descriptor, data))

    def reader(self) -> int:
        """Open the reading end of this pipe: the unread data is still in it (pipe(7))."""
        return self._used(lambda descriptor: os.open(f"/proc/self/fd/{descriptor}", os.O_RDONLY | os.O_CLOEXEC))

    def close(self) -> bool:
        """Close the pipe, and return whether it was open."""
        with self._lock:
            was_open, self.closed = not self.closed, True
            self._let_go()
        return was_open

    def _used(self, use: Callable[[int], Any]) -> Any:
        with self._lock:
            if self.closed:
                raise InvalidStateError("this stream is closed")
            self._users += 1
        try:
            return use(self._descriptor)
        finally:
            with self._lock:
                self._users -= 1
                self._let_go()

    def _let_go(self) -> None:
        if self.closed and not self._users and self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def __del__(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
