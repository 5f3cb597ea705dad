"""The daemon's socket: connections, their frames, and the sessions they belong to."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import re
import socket
from collections.abc import Callable
from pathlib import Path

from paddock.backends.threads import TaskSet
from paddock.errors import (
    DaemonLostError,
    InternalError,
    InvalidArgumentError,
    InvalidStateError,
    PaddockError,
    PolicyDeniedError,
    ResourceExhaustedError,
    exhaustion,
)
from paddock.linux.local_sockets import reached
from paddock.model import codec
from paddock.wire import MAX_REQUEST, NO_REPLY, Frame, Inbox, Kind, WireError, close_all, pack
from paddock.wire.duplex import LoopConnection

from ._requests import Requests, let_go
from ._sessions import Session

SOCKET = "daemon.sock"
_BACKLOG = 1024
_UNREAD_BYTES = 4 << 20
"""Unread answers of a client, at most: until it reads them, none of its requests is read."""
_BUSY_SECONDS = 0.1
_LAST_SECONDS = 2.0
"""In which clients take their last answers from a daemon that leaves."""
_HELLO_SECONDS = 5.0
_OPEN_REQUESTS = 1024
"""Of one connection, at once."""
_TOKEN = re.compile(r"[0-9a-f]{32}")
_log = logging.getLogger("paddock")


class Leaving(Exception):
    """The daemon is about to leave: the client that greets it starts the next one."""


class Listener:
    """Accept clients of this user. `greet` makes the answer to a HELLO; `ended` gets each ended session."""

    def __init__(
        self, requests: Requests, *, greet: Callable[[codec.Hello], codec.Welcome], ended: Callable[[Session], None]
    ) -> None:
        self.requests, self._greet, self._ended = requests, greet, ended
        self.sessions: dict[str, Session] = {}
        self.tasks = TaskSet()
        self._connections: set[_Connection] = set()
        self._socket: socket.socket | None = None

    def listen(self, directory: Path) -> None:
        """Binds beside the name and renames over it, so that no client ever finds the name missing or dead."""
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        staged = f"{SOCKET}.{os.getpid()}"
        (directory / staged).unlink(missing_ok=True)
        os.fchmod(listener.fileno(), 0o600)  # its name has this mode from the start
        with reached(directory) as short:
            listener.bind(f"{short}/{staged}")
        listener.listen(_BACKLOG)
        (directory / staged).rename(directory / SOCKET)
        self._socket = listener
        asyncio.get_running_loop().add_reader(listener.fileno(), self._accept)

    def stop(self) -> None:
        """Take no new connection and no new request. Those under way go on."""
        if self._socket is None:
            return
        listener, self._socket = self._socket, None
        asyncio.get_running_loop().remove_reader(listener.fileno())
        with contextlib.suppress(OSError):
            listener.shutdown(socket.SHUT_RD)
        listener.close()

    @property
    def leaves(self) -> bool:
        return self._socket is None

    async def aclose(self) -> None:
        """Cancel what is under way, wait until it is undone, and finish every connection."""
        self.stop()
        tasks = self.tasks - {task for task in (asyncio.current_task(),) if task is not None}
        self.requests.leaves = True
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        if finishing := [connection.finish() for connection in tuple(self._connections)]:
            await asyncio.wait(finishing, timeout=_LAST_SECONDS)
        for connection in tuple(self._connections):
            connection.close()

    def session(self, token: str, pid: int) -> Session:
        """Return the one with this token, which only its own process knows. InvalidArgument."""
        if not _TOKEN.fullmatch(token):
            raise InvalidArgumentError("a session's token is 32 hexadecimal digits")
        found = self.sessions.get(token)
        if found is None:
            found = self.sessions[token] = Session(token, pid, self._session_ended)
        elif found.pid != pid:
            raise InvalidArgumentError(f"this session is of process {found.pid}, and this is {pid}")
        return found

    def forget(self, connection: _Connection) -> None:
        self._connections.discard(connection)

    def _session_ended(self, session: Session) -> None:
        if self.sessions.get(session.token) is session:
            del self.sessions[session.token]
        self.requests.recent.end(session.token)
        for connection in tuple(session.connections):
            if isinstance(connection, _Connection):
                connection.close()
        self._ended(session)

    def _accept(self) -> None:
        listener = self._socket
        while listener is not None:
            try:
                peer, _ = listener.accept()
            except BlockingIOError:
                return
            except OSError:  # out of descriptors: the queue holds them, and asking at once would find the same
                loop = asyncio.get_running_loop()
                loop.remove_reader(listener.fileno())
                loop.call_later(_BUSY_SECONDS, self._reattach)
                return
            self._connections.add(_Connection(peer, self, self._greet))
            listener = self._socket

    def _reattach(self) -> None:
        if self._socket is not None:
            asyncio.get_running_loop().add_reader(self._socket.fileno(), self._accept)


class _Connection(LoopConnection):
    """One client's connection: starts a task for each OPEN, and reads no more from a client that leaves its answers."""

    def __init__(self, peer: socket.socket, listener: Listener, greet: Callable[[codec.Hello], codec.Welcome]) -> None:
        self._listener, self._greet = listener, greet
        self._session: Session | None = None
        self._open: dict[int, asyncio.Task[None]] = {}
        self._is_broken = False
        self._finished: asyncio.Future[None] | None = None
        super().__init__(peer, Inbox(MAX_REQUEST))
        silent = WireError(f"it did not greet within {_HELLO_SECONDS} s")
        self._silent = self._loop.call_later(_HELLO_SECONDS, self._fail, silent)

    def finish(self) -> asyncio.Future[None]:
        """Announce that no more requests are read: those without an answer were not started. Close when the client has
        all answers."""
        self._finished = self._loop.create_future()
        self._read(False)
        self._send(Kind.CLOSE, 0, b"")
        return self._finished

    def _fail(self, error: OSError | WireError) -> None:
        """End the connection. The client may come back for its answers, if it lives."""
        if not isinstance(error, ConnectionError):  # it closed it before it had read all answers (unix(7)): interrupted
            _log.warning("a connection of process %d is closed: %s", self.pid, error)
        self._is_broken = True
        self.close()

    def _on_end(self) -> None:
        if self._finished is not None:
            self._finished.set_result(None)
        self._silent.cancel()
        self._listener.forget(self)
        is_lost = False
        for task in self._open.values():
            if self._listener.requests.recent.connection_lost(task):
                is_lost = True
            else:
                task.cancel()
        if self._session is not None:
            self._session.disconnected(self, is_lost=is_lost or self._is_broken)

    def _on_frame(self, frame: Frame) -> None:
        if self.closed:
            pass
        elif frame.lost:
            exhausted = exhaustion(OSError(errno.EMFILE, os.strerror(errno.EMFILE)))
            assert exhausted is not None
            self._refuse(frame.channel, exhausted)
        elif self._listener.leaves and frame.kind in (Kind.HELLO, Kind.OPEN):
            pass  # `finish` tells
        elif frame.kind is Kind.HELLO and self._session is None:
            self._hello(frame)
        elif frame.kind is Kind.OPEN and self._session is not None and frame.channel not in self._open:
            if len(self._open) < _OPEN_REQUESTS:
                self._start(self._session, frame)  # which closes its descriptors
                return
            self._refuse(frame.channel, _too_many())
        elif frame.kind is Kind.CLOSE and self._session is not None:
            if (task := self._open.get(frame.channel)) is not None:
                task.cancel()
            else:  # its answer and this have crossed; a client that has lost that answer must not wait for another
                self._refuse(frame.channel, InvalidStateError("it was answered before"))
        else:
            close_all(frame.descriptors)
            raise WireError(f"{frame.kind.name} on channel {frame.channel}")
        close_all(frame.descriptors)

    def _refuse(self, channel: int, error: PaddockError) -> None:
        self._send(Kind.ERROR, channel, codec.encode_error(error))

    def _hello(self, frame: Frame) -> None:
        try:
            if not self.uid == os.geteuid():
                raise PolicyDeniedError("this daemon is another user's", hint="use a state directory of your own")
            hello = codec.decode(frame.body, codec.Hello)
            welcome = self._greet(hello)
            session = self._listener.session(hello.session, self.pid)
        except Leaving:  # `finish` tells
            pass
        except codec.Malformed as error:
            self._refuse(0, InvalidArgumentError(f"not a greeting: {error}"))
        except PaddockError as error:
            self._refuse(0, error)
        else:
            self._silent.cancel()
            self._session = session
            session.connections.add(self)
            self._send(Kind.HELLO, 0, codec.encode(welcome))

    def _start(self, session: Session, frame: Frame) -> None:
        channel, answers = frame.channel, not frame.flags & NO_REPLY
        answer: Frame | None = None

        def reply(kind: Kind, body: bytes, descriptors: tuple[int, ...] = ()) -> None:
            nonlocal answer
            if kind is not Kind.CONTROL:
                answer = Frame(kind, channel, body, descriptors)
            elif answers and not self.closed:
                self._send(kind, channel, body)

        async def serve() -> None:
            try:
                await self._listener.requests.answer(session, frame, reply)
            finally:
                task.remove_done_callback(done)
                done(task)

        def done(task: asyncio.Task[None]) -> None:
            close_all(frame.descriptors)
            del self._open[channel]
            self._listener.tasks.discard(task)
            sent = answer
            if sent is None:  # cancelled
                error = (
                    DaemonLostError("the daemon leaves") if self._listener.leaves else InternalError("it was cancelled")
                )
                sent = Frame(Kind.ERROR, channel, codec.encode_error(error))
            if answers and not self.closed:
                self._send(*sent[:4])  # last of all: the kernel may run the client in place of this process
            else:
                close_all(sent.descriptors)

        task = asyncio.get_running_loop().create_task(serve())
        self._open[channel] = task
        self._listener.tasks.add(task)
        task.add_done_callback(done)  # for one that is cancelled before its first step

    def _send(self, kind: Kind, channel: int, body: bytes, descriptors: tuple[int, ...] = ()) -> None:
        self.send(kind, channel, body, descriptors)
        if self._unsent_bytes > _UNREAD_BYTES:
            self._read(False)

    def _on_drained(self) -> None:
        super()._on_drained()
        if self._finished is None:
            self._read(True)
        else:
            self.close()

    def _on_write_error(self, error: OSError) -> None:
        """Try again soon if the kernel has no room. Release a handle whose descriptors can't be sent."""
        exhausted = exhaustion(error)
        if exhausted is None or isinstance(error, ConnectionError):
            self._fail(error)
            return
        frame, data = self._unsent[0]
        if frame.descriptors:
            close_all(frame.descriptors)
            body = codec.encode_error(exhausted)
            refused = memoryview(pack(Kind.ERROR, frame.channel, body))
            self._unsent[0] = (Frame(Kind.ERROR, frame.channel, body), refused)
            self._unsent_bytes += len(refused) - len(data)
            assert self._session is not None
            self._listener.tasks.start(let_go(self._session, frame.body))
        self._wait_for_room(False)
        self._loop.call_later(_BUSY_SECONDS, self._write)


def _too_many() -> ResourceExhaustedError:
    return ResourceExhaustedError(
        f"this connection has {_OPEN_REQUESTS} requests under way",
        hint="wait for some of them before you send the next",
    )
