"""Calls that block: sockets and pipes, no event loop and no thread."""

from __future__ import annotations

import os
from _thread import allocate_lock

from paddock.errors import DaemonLost, InvalidState, PaddockError
from paddock.wire import AGAIN, NO_REPLY, Connection, Frame, Kind, NotSent, WireError, close_all

from ._session import answered, handle_methods, lost_call, not_started, nothing, tell, too_many_under_way

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from ._session import Lost, Session, Undo


class Calls:
    """Any number of threads may use it; each call has a connection for itself.

    A call that a signal handler's exception interrupts, Ctrl-C for one, is cancelled: the exception is raised when the
    daemon has undone it. A second one does not wait for that.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self.give_up, self.state_dir = session.give_up, session.state_dir

    def call(self, handle: int, method: str, *, cancels: bool = True, lost: Lost = lost_call, **fields: Any) -> bytes:
        """A method of a handle; what it returns, encoded."""
        body = handle_methods(handle, method, id=os.urandom(16).hex(), **fields)
        return self.ask(body, (), cancels=cancels, lost=lost).body

    def ask(
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
        """Return the REPLY. Raise the daemon's error, or `lost` where its outcome is unknown.

        A request whose connection ends is sent once more, on a new connection: the others may be those of a daemon
        that is dying. If it had reached the daemon whole it is sent as `AGAIN`, unless not `again`: the daemon knows
        what became of it, or says that it doesn't. A daemon that leaves says what it has not started, which is sent to
        the next one. Of what it was working on only what is `repeatable` is asked of the next one.
        """
        problem, flags = "", 0  # a text: the exception would keep the callers' frames, and the streams in them, alive
        for connect in (self._session.take, self._session.open):
            try:
                connection = connect()
            except (OSError, PaddockError) as error:
                if not flags:
                    raise
                problem = str(error)
                break
            channel = connection.next_channel()
            is_sent = False
            try:
                connection.send(Kind.OPEN, channel, body, descriptors=descriptors, flags=flags)
                is_sent = True
                frame = self._answer(connection, channel)
            except NotSent as error:
                frame, problem, is_sent = None, str(error), False
            except (OSError, WireError) as error:
                if (refused := too_many_under_way(error)) is not None:
                    self._session.give_back(connection)
                    raise refused from None
                frame, problem = None, str(error)
            except BaseException:
                self._interrupted(connection, channel, cancels, undo)
                raise
            if frame is not None:
                self._session.give_back(connection)
                try:
                    return answered(frame, self.give_up)
                except DaemonLost as error:  # it leaves, or it is the next one
                    problem, again = error.message, again and repeatable
            else:
                connection.close()
            if is_sent:
                flags = AGAIN
                if not again:
                    break
        raise lost(problem) if flags else not_started(problem)

    def _answer(self, connection: Connection, channel: int) -> Frame | None:
        while (frame := connection.receive()) is not None:
            if frame.channel == channel and frame.kind is not Kind.CONTROL:
                return frame
            if frame.kind is Kind.CONTROL and frame.channel == channel:
                tell(frame.body)
            if frame.kind is Kind.CLOSE:
                raise NotSent("the daemon leaves")
            close_all(frame.descriptors)
        return None

    def _interrupted(self, connection: Connection, channel: int, cancels: bool, undo: Undo) -> None:
        """Cancel what was asked and wait until it is undone. An exception in here ends the wait, and the connection."""
        frame = None
        try:
            if cancels:
                connection.unread()
                connection.send(Kind.CLOSE, channel)
                frame = self._answer(connection, channel)
        except (OSError, WireError):
            pass
        finally:
            if frame is None:
                connection.close()  # a request that the daemon is not told to cancel by name ends with its connection
        if frame is not None:
            for body in undo(frame):
                connection.send(Kind.OPEN, connection.next_channel(), body, flags=NO_REPLY)
            self._session.give_back(connection)


class Pipe:
    """A descriptor whose other end is the daemon's.

    One thread may close it while another reads. The descriptor is closed when no thread uses it any more, so its number
    never means another file in between.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._lock = allocate_lock()
        self._users = 0
        self._closed = False

    def read(self, size: int) -> bytes:
        return self._used(lambda descriptor: os.read(descriptor, size))

    def write(self, data: bytes | memoryview) -> int:
        return self._used(lambda descriptor: os.write(descriptor, data))

    def close(self) -> bool:
        """Whether it was open."""
        with self._lock:
            was_open, self._closed = not self._closed, True
            self._let_go()
        return was_open

    def _used(self, use: Callable[[int], Any]) -> Any:
        with self._lock:
            if self._closed:
                raise InvalidState("this stream is closed")
            self._users += 1
        try:
            return use(self._descriptor)
        finally:
            with self._lock:
                self._users -= 1
                self._let_go()

    def _let_go(self) -> None:
        if self._closed and not self._users and self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def __del__(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
