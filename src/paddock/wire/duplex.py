"""Connections in an event loop. On a `Duplex` both sides send requests.

Apart from the package's interface: blocking clients import no asyncio.
"""

from __future__ import annotations

import asyncio
import errno
import itertools
import os
import socket
import struct
import weakref
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any

from ._connection import receive_some, send_some
from ._frames import Frame, Inbox, Kind, NotSent, WireError, close_all, pack

LEAVE_SECONDS = 10.0
"""Time in which a process that ends connections without a message must end itself.

Otherwise it counts as a stranger.
"""
LOOK_SECONDS = 20.0
"""Period in which `greet`'s connection looks whether its peer is silent. The peer hangs at the third look: this process
may itself have stood still before one of them."""
_GRACE_SECONDS = 1.0
"""Time for a peer that has hung and goes on to answer, before the next caller gets the error."""
MAX_BODY = 64 << 20
"""Bytes: ten thousand rules are two million."""
_ANSWERS = frozenset({Kind.HELLO, Kind.REPLY, Kind.ERROR})
_ASKS = frozenset({Kind.HELLO, Kind.OPEN})


class OtherVersion(Exception):
    """The process that listens there ends connections that greet it: it speaks another protocol."""

    def __init__(self, pid: int) -> None:
        super().__init__(f"process {pid} speaks another protocol")
        self.pid = pid


class NoAnswer(ConnectionError):
    """The process at the other end takes requests, and has sent nothing for a long time."""

    def __init__(self, pid: int) -> None:
        super().__init__(f"process {pid} has not answered for {2 * LOOK_SECONDS:g} s")
        self.pid = pid


class LoopConnection(ABC):
    """Frames over a socket, in an event loop. A subclass has `_on_frame` and `_on_end`."""

    def __init__(self, peer: socket.socket, inbox: Inbox) -> None:
        peer.setblocking(False)
        self._peer, self._inbox = peer, inbox
        self._loop = asyncio.get_running_loop()
        self._unsent: deque[tuple[Frame, memoryview]] = deque()
        self._unsent_bytes: int = 0
        self.closed = self._reads = self._waits_for_room = False
        self._owner = os.getpid()
        self.pid, self.uid, _ = struct.unpack("=3i", peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
        self._read(True)

    def send(
        self, kind: Kind, channel: int, body: bytes = b"", descriptors: tuple[int, ...] = (), *, flags: int = 0
    ) -> None:
        """Send a frame when possible. It closes `descriptors` after the send, or a failure. Raises NotSent."""
        if self.closed:
            close_all(descriptors)
            raise NotSent("the other side has gone")
        data = memoryview(pack(kind, channel, body, descriptors=descriptors, flags=flags))
        self._unsent.append((Frame(kind, channel, body, descriptors), data))
        self._unsent_bytes += len(data)
        if len(self._unsent) == 1:
            self._write()

    def close(self) -> None:
        """End it. A fork of this process leaves the connection to its parent."""
        if self.closed:
            return
        self.closed = True
        if self._owner == os.getpid():
            self._read(False)
            self._loop.remove_writer(self._peer.fileno())
        self._peer.close()
        self._inbox.close()
        for frame, _ in self._unsent:
            close_all(frame.descriptors)
        self._on_end()
        self._unsent.clear()

    @abstractmethod
    def _on_frame(self, frame: Frame) -> None:
        """Handle a frame, and own its descriptors. A WireError ends the connection."""

    @abstractmethod
    def _on_end(self) -> None:
        """Note the end of incoming data. It runs once."""

    def _fail(self, error: OSError | WireError) -> None:
        self.close()

    def _on_write_error(self, error: OSError) -> None:
        """Fail only the request whose descriptors have no room, if it can be."""
        frame, data = self._unsent[0]
        if error.errno != errno.ETOOMANYREFS or not self._on_unsent(frame, error):
            self._fail(error)
            return
        self._unsent.popleft()  # the kernel has taken no byte of it (unix(7)): the connection is as it was
        self._unsent_bytes -= len(data)
        close_all(frame.descriptors)
        self._write()

    def _on_unsent(self, frame: Frame, error: OSError) -> bool:
        """Fail the request of this frame. Return False if nothing waits for it."""
        return False

    def _on_drained(self) -> None:
        """Note that the peer has taken all there was."""
        self._wait_for_room(False)

    def _read(self, wanted: bool) -> None:
        if wanted != self._reads:
            self._reads = wanted
            if wanted:
                self._loop.add_reader(self._peer.fileno(), self._readable)
            else:
                self._loop.remove_reader(self._peer.fileno())

    def _write(self) -> None:
        if self.closed:
            return
        try:
            while self._unsent:
                frame, data = self._unsent[0]
                sent = send_some(self._peer, data, frame.descriptors)
                self._unsent_bytes -= sent
                close_all(frame.descriptors)
                if sent < len(data):  # a peer that reads as fast as this writes must not keep the loop
                    self._unsent[0] = (frame._replace(descriptors=()), data[sent:])
                    return self._wait_for_room(True)
                self._unsent.popleft()
        except BlockingIOError:
            self._wait_for_room(True)
        except OSError as error:
            self._on_write_error(error)
        else:
            self._on_drained()

    def _wait_for_room(self, wanted: bool) -> None:
        if wanted:
            self._loop.add_writer(self._peer.fileno(), self._write)
        elif self._waits_for_room:
            self._loop.remove_writer(self._peer.fileno())
        self._waits_for_room = wanted

    def _readable(self) -> None:
        try:
            data, descriptors, lost = receive_some(self._peer)
            for frame in self._inbox.feed(data, descriptors, lost=lost):
                self._on_frame(frame)
        except BlockingIOError:
            return
        except (OSError, WireError) as error:
            self._fail(error)
            return
        if not data:
            self.close()


class Duplex(LoopConnection):
    """A connection in an event loop.

    It calls `on_frame` with each frame that isn't an answer, which then owns the descriptors.

    It calls `on_end` once, at the end of incoming data. A WireError that `on_frame` raises ends the connection.
    """

    def __init__(
        self,
        peer: socket.socket,
        on_frame: Callable[[Duplex, Frame], None],
        on_end: Callable[[Duplex], None],
        most_bytes: int = MAX_BODY,
    ) -> None:
        super().__init__(peer, Inbox(most_bytes))
        self._frame_callback, self._end_callback = on_frame, on_end
        self._pending: dict[int, asyncio.Future[Frame]] = {}
        self._channels = itertools.count(1)
        self._next_look: asyncio.TimerHandle | None = None
        self._silent_looks = 0
        self.on_silence: Callable[[NoAnswer], object] | None = None
        self.why = ConnectionError("the other side went away before it answered")
        """The exception for pending questions at the end. It is NotSent if the peer hasn't got their request."""

    async def ask(self, body: bytes, descriptors: tuple[int, ...] = (), *, kind: Kind = Kind.OPEN) -> Frame:
        """Return the answer: HELLO, REPLY or ERROR.

        It always closes `descriptors`.

        Raises ConnectionError if the peer has gone, and NotSent if the peer hasn't got the request. Raises OSError if
        the descriptors of the request or of the answer don't fit.
        """
        channel = 0 if kind is Kind.HELLO else next(self._channels)
        answer = self._pending[channel] = self._loop.create_future()
        try:
            self.send(kind, channel, body, descriptors)
            frame = await answer
        except asyncio.CancelledError:
            if not answer.cancelled() and answer.exception() is None:  # it came just now
                close_all(answer.result().descriptors)
            raise
        finally:
            del self._pending[channel]
        if frame.lost:
            close_all(frame.descriptors)
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return frame

    def expect_answers(self) -> None:
        """From now on, call `on_silence` when a question waits and the peer sends nothing. Without one, close the
        connection: `why` is NoAnswer.

        For a peer that answers soon what it can: it hangs, and a caller would wait without end.
        """
        self._silent_looks = self._silent_looks + 1 if self._pending else 0
        self._next_look = self._loop.call_later(LOOK_SECONDS, _look, weakref.ref(self))
        if self._silent_looks == 3 and self.on_silence is not None:
            self.on_silence(NoAnswer(self.pid))
        elif self._silent_looks == 3:
            self.why = NoAnswer(self.pid)
            self.close()

    def _on_end(self) -> None:
        if self._next_look is not None:
            self._next_look.cancel()
        unsent = {frame.channel for frame, _ in self._unsent if frame.kind in _ASKS}
        for channel, answer in self._pending.items():
            if not answer.done():
                answer.set_exception(NotSent(*self.why.args) if channel in unsent else self.why)
                answer.exception()  # the waiting caller may have left
        self._end_callback(self)

    def _on_unsent(self, frame: Frame, error: OSError) -> bool:
        answer = self._pending.get(frame.channel) if frame.kind in _ASKS else None
        if answer is not None and not answer.done():
            answer.set_exception(error)
        return answer is not None

    def _on_frame(self, frame: Frame) -> None:
        self._silent_looks = 0
        answer = self._pending.get(frame.channel) if frame.kind in _ANSWERS else None
        if answer is not None and not answer.done():
            answer.set_result(frame)
        elif answer is not None or frame.kind in (Kind.REPLY, Kind.ERROR) or frame.lost or self.closed:
            close_all(frame.descriptors)
        else:
            self._frame_callback(self, frame)


def _look(connection: Callable[[], Duplex | None]) -> None:
    if (found := connection()) is not None:
        found.expect_answers()


async def greet(
    connect: Callable[[], socket.socket | None],
    hello: bytes,
    on_frame: Callable[[Duplex, Frame], None],
    on_end: Callable[[Duplex], None],
    on_silence: Callable[[NoAnswer], object],
) -> tuple[Duplex, Frame] | None:
    """Connect, send HELLO, and return the connection with the answer. Return None without a listener.

    Raises OtherVersion.

    If the listener hangs, this calls `on_silence` and goes on to wait. Later questions raise NoAnswer.

    A leaving process ends the connection. Then this waits for its end, and connects to the next one.
    """
    while (peer := connect()) is not None:
        connection = Duplex(peer, on_frame, on_end)
        connection.on_silence = on_silence
        connection.expect_answers()
        try:
            answer = await connection.ask(hello, kind=Kind.HELLO)
        except ConnectionError:
            if connection.pid != os.getpid() and not await _ends(connection.pid):
                raise OtherVersion(connection.pid) from None
            continue
        except BaseException:
            connection.close()
            raise
        if not connection.closed:
            connection.on_silence = None
            return connection, answer
        close_all(answer.descriptors)
    return None


async def _ends(pid: int) -> bool:
    """Tell whether that process ends within LEAVE_SECONDS."""
    try:
        process = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    loop = asyncio.get_running_loop()
    ended = loop.create_future()
    loop.add_reader(process, lambda: ended.done() or ended.set_result(None))
    try:
        async with asyncio.timeout(LEAVE_SECONDS):
            await ended
    except TimeoutError:
        return False
    finally:
        loop.remove_reader(process)
        os.close(process)
    return True


class Attempt:
    """Share one attempt to connect among all callers that need it meanwhile.

    If the peer hangs, these callers give up together, and later ones soon. The attempt goes on until the peer answers
    or has gone.
    """

    def __init__(self) -> None:
        self._work: asyncio.Task[bool] | None = None
        self._silence: asyncio.Future[NoAnswer] | None = None

    async def join(self, connect: Callable[[Callable[[NoAnswer], object]], Coroutine[Any, Any, bool]]) -> bool:
        """Return or raise what `connect` does, which gets the `on_silence` of `greet`. Raises NoAnswer too."""
        loop = asyncio.get_running_loop()
        if self._work is None or self._silence is None or self._work.done():
            silence = self._silence = loop.create_future()
            self._work = loop.create_task(connect(lambda error: silence.done() or silence.set_result(error)))
            self._work.add_done_callback(lambda work: work.cancelled() or work.exception())
        work, silence = self._work, self._silence
        await asyncio.wait((work, silence), return_when=asyncio.FIRST_COMPLETED)
        if not (await asyncio.wait((work,), timeout=_GRACE_SECONDS))[0]:
            raise silence.result()
        return work.result()

    def cancel(self) -> None:
        if self._work is not None:
            self._work.cancel()
            self._work = None
