"""An asyncio connection on which both sides ask.

Apart from the package's interface: blocking clients import no asyncio.
"""

from __future__ import annotations

import asyncio
import errno
import itertools
import os
import socket
import struct
from collections import deque
from collections.abc import Callable

from ._connection import receive_some, send_some
from ._frames import Frame, Inbox, Kind, NotSent, WireError, close_all, pack

LEAVE_SECONDS = 10.0
"""A process that ends connections without a word is given so long to end before it is taken for a stranger."""
MAX_BODY = 64 << 20
"""Bytes: ten thousand rules are two million."""
_ANSWERS = frozenset({Kind.HELLO, Kind.REPLY, Kind.ERROR})
_ASKS = frozenset({Kind.HELLO, Kind.OPEN})


class Stranger(Exception):
    """The process that listens there ends connections that greet it: it speaks another protocol."""

    def __init__(self, pid: int) -> None:
        super().__init__(f"process {pid} speaks another protocol")
        self.pid = pid


class Duplex:
    """The loop calls `heard` with each frame that is no answer, whose descriptors are its own then, and `ended` once,
    when nothing more comes. A WireError that `heard` raises ends the connection."""

    def __init__(
        self,
        peer: socket.socket,
        heard: Callable[[Duplex, Frame], None],
        ended: Callable[[Duplex], None],
        max_body: int = MAX_BODY,
    ) -> None:
        peer.setblocking(False)
        self._peer, self._heard, self._ended = peer, heard, ended
        self._loop = asyncio.get_running_loop()
        self._inbox = Inbox(max_body)
        self._asked: dict[int, asyncio.Future[Frame]] = {}
        self._channels = itertools.count(1)
        self._unsent: deque[tuple[asyncio.Future[Frame] | None, memoryview, tuple[int, ...]]] = deque()
        """Frames with their descriptors, and who waits for the answer to each."""
        self.closed = self._waits_for_room = False
        self._owner = os.getpid()
        self.pid, self.uid, _ = struct.unpack("=3i", peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
        self._loop.add_reader(peer.fileno(), self._readable)

    async def ask(self, body: bytes, descriptors: tuple[int, ...] = (), *, kind: Kind = Kind.OPEN) -> Frame:
        """Return the answer: HELLO, REPLY or ERROR. `descriptors` are closed here, whatever happens.

        ConnectionError: the peer has gone; NotSent if it has not heard this. OSError if there was no room for the
        descriptors of the request or of the answer.
        """
        channel = 0 if kind is Kind.HELLO else next(self._channels)
        answer = self._asked[channel] = self._loop.create_future()
        try:
            self.send(kind, channel, body, descriptors)
            frame = await answer
        except asyncio.CancelledError:
            if not answer.cancelled() and answer.exception() is None:  # it came just now
                close_all(answer.result().descriptors)
            raise
        finally:
            del self._asked[channel]
        if frame.lost:
            close_all(frame.descriptors)
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return frame

    def send(
        self, kind: Kind, channel: int, body: bytes = b"", descriptors: tuple[int, ...] = (), *, flags: int = 0
    ) -> None:
        """Send it by and by. `descriptors` are closed here when they have gone, or can't go. NotSent."""
        if self.closed:
            close_all(descriptors)
            raise NotSent("the other side has gone")
        frame = memoryview(pack(kind, channel, body, descriptors=descriptors, flags=flags))
        self._unsent.append((self._asked.get(channel) if kind in _ASKS else None, frame, descriptors))
        if len(self._unsent) == 1:
            self._write()

    def close(self, error: ConnectionError | None = None) -> None:
        """Tell all who wait for an answer `error`, and those NotSent whose request the peer has not got. A fork of this
        process leaves the connection to its parent."""
        if self.closed:
            return
        self.closed = True
        if self._owner == os.getpid():
            self._loop.remove_reader(self._peer.fileno())
            self._loop.remove_writer(self._peer.fileno())
        self._peer.close()
        self._inbox.close()
        error = error or ConnectionError("the other side went away before it answered")
        unheard = {answer for answer, _, _ in self._unsent}
        for _, _, descriptors in self._unsent:
            close_all(descriptors)
        self._unsent.clear()
        for answer in self._asked.values():
            if not answer.done():
                answer.set_exception(NotSent(*error.args) if answer in unheard else error)
                answer.exception()  # whoever waited may have left
        self._ended(self)

    def _write(self) -> None:
        while self._unsent:
            answer, data, descriptors = self._unsent[0]
            try:
                sent = send_some(self._peer, data, descriptors)
            except BlockingIOError:
                self._loop.add_writer(self._peer.fileno(), self._write)
                self._waits_for_room = True
                return
            except OSError as error:
                if error.errno != errno.ETOOMANYREFS or answer is None:
                    self.close()
                    return
                sent = len(data)  # the kernel has taken no byte of it (unix(7)): the connection is as it was
                if not answer.done():
                    answer.set_exception(error)
            close_all(descriptors)
            if sent < len(data):
                self._unsent[0] = (answer, data[sent:], ())
            else:
                self._unsent.popleft()
        if self._waits_for_room:
            self._loop.remove_writer(self._peer.fileno())
            self._waits_for_room = False

    def _readable(self) -> None:
        try:
            data, descriptors, lost = receive_some(self._peer)
            for frame in self._inbox.feed(data, descriptors, lost=lost):
                self._take(frame)
        except BlockingIOError:
            return
        except (OSError, WireError):
            data = b""
        if not data:
            self.close()

    def _take(self, frame: Frame) -> None:
        answer = self._asked.get(frame.channel) if frame.kind in _ANSWERS else None
        if answer is not None and not answer.done():
            answer.set_result(frame)
        elif answer is not None or frame.kind in (Kind.REPLY, Kind.ERROR) or frame.lost or self.closed:
            close_all(frame.descriptors)
        else:
            self._heard(self, frame)


async def greet(
    connect: Callable[[], socket.socket | None],
    hello: bytes,
    heard: Callable[[Duplex, Frame], None],
    ended: Callable[[Duplex], None],
) -> tuple[Duplex, Frame] | None:
    """Connect, say HELLO, and return the connection with the answer. None if nobody listens there. Stranger.

    One that is just leaving ends the connection: then its end is awaited, and what listens there after it is met.
    """
    while (peer := connect()) is not None:
        line = Duplex(peer, heard, ended)
        try:
            answer = await line.ask(hello, kind=Kind.HELLO)
        except ConnectionError:
            if line.pid != os.getpid() and not await _ends(line.pid):
                raise Stranger(line.pid) from None
            continue
        except BaseException:
            line.close()
            raise
        if not line.closed:
            return line, answer
    return None


async def _ends(pid: int) -> bool:
    """Whether that process ends within LEAVE_SECONDS."""
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
