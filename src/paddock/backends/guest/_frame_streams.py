"""Read and write a stream that passes a channel in frames: the receiver grants how many bytes may come."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING

from paddock.backends.threads import in_thread
from paddock.errors import GuestLostError
from paddock.wire import Frame, Kind, WireError
from paddock.wire.guest import Credit, Limit, Stream

from . import _frames as frames

if TYPE_CHECKING:
    from paddock.backends.jail import DescriptorStore
    from paddock.backends.pump import Flow, Journal

    from .connection import Channel

_FEED_BYTES = 1 << 18


def is_killed(error: BaseException) -> bool:
    """Tell whether the agent is dead, and so all that it had started."""
    return isinstance(error, GuestLostError) and error.details.get("killed") is True


class FrameReader:
    """Read a stream that comes in frames. It holds unread bytes, never more than the window."""

    closed = False
    of_command = False
    """A killed agent ends it, as if it were a pipe: the command's status says so."""
    cut = False
    """The writer learns when the reader has left."""
    journal: Journal | None = None
    """It writes all bytes that it reads there, if set. Set it before reading."""

    def __init__(self, channel: Channel, stream: int) -> None:
        self._channel, self._stream = channel, stream
        self._chunks: deque[bytes | memoryview] = deque()
        self._window = Limit.WINDOW
        self._consumed = 0
        self.is_whole = False
        """The guest has said that it is complete, or this side has released the channel."""
        self._has_left = False
        self._news = asyncio.Event()

    async def read(self, size: int = 65536) -> bytes:
        """b"" at the end; the error that ended it."""
        if self.journal is not None and self.journal.unread:
            return self.journal.again(size)
        # The reader has stored what it got before: the guest can drop that.
        if self._consumed >= Limit.WINDOW // 2 and not self.is_whole:
            self._channel.send(Kind.CREDIT, Credit(bytes=self._consumed).pack(), flags=self._stream)
            self._window += self._consumed
            self._consumed = 0
        while not self._chunks:
            error = None if self.is_whole else self._channel.error
            if error is not None and not (self.of_command and is_killed(error)):
                raise error
            if self.is_whole or self._channel.end.done:
                return b""
            self._news.clear()
            await self._news.wait()
        chunk = self._chunks.popleft()
        if len(chunk) > size:
            self._chunks.appendleft(memoryview(chunk)[size:])
            chunk = memoryview(chunk)[:size]
        self._consumed += len(chunk)
        data = bytes(chunk)
        if self.journal is not None:
            self.journal.add(data)
        return data

    async def pour(self, flow: Flow) -> None:
        await flow.pour(self.read)

    def kept(self) -> tuple[int, ...]:
        """Return the descriptor with which another daemon continues."""
        assert self.journal is not None
        return (self.journal.file,)

    def close(self) -> None:
        if self.journal is not None:
            self.journal.close()

    async def aclose(self) -> None:
        """Stop reading, as if the other end of a pipe were closed. The owner of the channel closes that."""
        if self.cut:
            self.drop()
            if not (self.is_whole or self._has_left or self._channel.is_over):
                self._has_left = True
                self._channel.send(Kind.EOF, flags=self._stream)

    # what the channel does

    def drop(self) -> None:
        self._chunks.clear()

    def wake(self) -> None:
        self._news.set()

    def receive(self, data: bytes) -> None:
        self._window -= len(data)
        if self._window < 0:
            raise WireError("data beyond what was granted")
        if not (self._channel.is_over or self._has_left):
            self._chunks.append(data)
            self.wake()

    def end(self) -> None:
        self.is_whole = True
        self.wake()


class FrameWriter:
    """Write a stream in frames, as much as the guest grants.

    When another daemon continues, the guest says how much the command had read. The journal has what the client wrote
    and the command hasn't read.
    """

    store: DescriptorStore | None = None
    """Makes the journal, if set."""
    journal: Journal | None = None
    skip = 0
    """Bytes that the command has had from an earlier daemon."""
    _flow: Flow | None = None

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._credit = Limit.WINDOW
        self._taken = 0
        """Bytes of the written ones that the guest's reader has taken, at least."""
        self.is_refused = False
        self._news, self._opening = asyncio.Event(), asyncio.Lock()

    async def write(self, data: bytes) -> None:
        at = 0
        while at < len(data):
            if self._channel.error is not None:
                raise self._channel.error
            if self.is_refused or self._channel.is_over or self._channel.exit.done:
                raise BrokenPipeError("no program inside reads it any more")
            if not self._credit:
                self._news.clear()
                await self._news.wait()
                continue
            part = data[at : at + min(self._credit, Limit.BODY)]
            self._credit -= len(part)
            self._channel.send(Kind.DATA, part, flags=Stream.IN)
            at += len(part)
            await self._channel.drain()
        if self.journal is not None:
            self.journal.done = self.skip + self._taken

    async def feed(self, data: bytes) -> None:
        """Write what the command has not had of `data`; then close."""
        for start in range(self.skip, len(data), _FEED_BYTES):
            await self.write(data[start : start + _FEED_BYTES])
        await self.aclose()

    async def draw(self, flow: Flow) -> None:
        self._flow = flow
        try:
            flow.journal = await self._journaled()
            if flow.journal is not None:
                flow.journal.skip(self.skip)
            await flow.draw(self.write)
        finally:
            self._flow = None
            if flow.stopped:
                self.close()

    async def kept(self) -> tuple[int, ...]:
        """Return the descriptor with which another daemon continues."""
        journal = await self._journaled()
        return () if journal is None or journal.file < 0 else (journal.file,)

    async def _journaled(self) -> Journal | None:
        """Return its journal, made before anything is read of the client."""
        async with self._opening:
            if self.journal is None and self.store is not None:
                await in_thread(self._make_journal, self.store)
        return self.journal

    def _make_journal(self, store: DescriptorStore) -> None:
        self.journal = store.journal()  # also for a caller that leaves meanwhile: `close` closes it

    def close(self) -> None:
        if self._flow is not None:
            self._flow.stop()
        elif self.journal is not None:
            self.journal.close()

    async def aclose(self) -> None:
        self._channel.write_eof()
        with self._channel.attended():
            await self._channel.drain(0)  # it reaches the guest even if this process dies

    async def abort(self) -> None:
        """Do nothing: the command may have read it, so it can't be taken back."""
        await self.aclose()

    # what the channel does

    def grant(self, frame: Frame) -> None:
        credit = frames.credit_of(frame)
        self._credit += credit
        self._taken += credit
        if self._credit > Limit.CREDIT:
            raise WireError("credit beyond the window")
        self.wake()

    def refuse(self) -> None:
        self.is_refused = True
        self.wake()

    def wake(self) -> None:
        self._news.set()
