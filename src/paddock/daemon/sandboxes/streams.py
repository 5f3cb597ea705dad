"""Count, digest and redact a caller's streams, read here or moved to a client by the pump.

When one ends, its outcome is recorded with its length and digest, never with its bytes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

from paddock.backends.pump import Flow, Meter, draw, pour
from paddock.daemon.context import Operation
from paddock.daemon.store.database import Row
from paddock.errors import SandboxDiedError
from paddock.model import ByteReader, ByteStream, ByteWriter, ChangeStream, FileChange, FileInfo

from .running import RunningSandboxes

T = TypeVar("T")


class Record:
    """The outcome of the action that opened a stream, or nothing where the stream is part of another's."""

    def __init__(self, row: Row, running: RunningSandboxes, op: Operation | None) -> None:
        self._row, self._running, self._op = row, running, op
        if op is not None:
            op.defer()

    def done(self, detail: dict[str, object]) -> None:
        if self._op is not None:
            self._op.done(detail)

    async def result(self, work: Awaitable[T], *, unless: tuple[type[Exception], ...] = ()) -> T:
        """Return what `work` on the stream returns. Record its failure, and raise it with the reason of a death."""
        try:
            return await work
        except unless:
            raise
        except Exception as error:
            failure = error
        if self._op is not None:
            if isinstance(failure, SandboxDiedError):
                failure = await self._running.dead(self._row)
            self._op.failed(failure)
        raise failure from None

    def part(self) -> Record:
        """Return the record of one direction of the stream: nothing."""
        return Record(self._row, self._running, None)

    def waking(self, *, digests: bool = True) -> Meter:
        """Return the meter of what goes into the sandbox, which wakes it."""
        return Meter(
            digests=digests,
            blocked=lambda: self._running.is_still(self._row),
            unblock=lambda: self._running.resume_for_input(self._row),
        )


class Outbound:
    """A ByteReader."""

    def __init__(self, inner: ByteReader, meter: Meter, record: Record, *, after: asyncio.Event | None = None) -> None:
        """Set `after` before reading anything."""
        self._inner, self.meter, self._record, self._after = inner, meter, record, after
        self._ready, self._ended = b"", False
        self.flow: Flow | None = None

    async def read(self, size: int = 65536) -> bytes:
        if self._after is not None:
            await self._after.wait()
        # Data that is held back entirely isn't the end.
        while size and not self._ready and not self._ended:
            data = await self._record.result(self._inner.read(size))
            self._ended = not data
            self._ready = self.meter.feed(data)
        data, self._ready = self._ready[:size], self._ready[size:]
        self.meter.add(data)
        if self.meter.blocked():
            await self.meter.unblock()
        if size and not data:
            self._finish()
        return data

    async def pour(self, flow: Flow) -> None:
        flow.meter, self.flow = self.meter, flow
        if self._after is not None:
            await self._after.wait()
        await self._record.result(pour(self._inner, flow), unless=(BrokenPipeError,))  # a client that goes closes it
        self._ended = True
        self._finish()

    async def aclose(self) -> None:
        try:
            await self._inner.aclose()
        finally:
            self._finish()

    def _finish(self) -> None:
        whole = self._ended and not self._ready
        self._record.done({"content": self.meter.content(), "whole": whole})


class Inbound:
    """A ByteWriter."""

    def __init__(self, inner: ByteWriter, meter: Meter, record: Record) -> None:
        self._inner, self.meter, self._record = inner, meter, record

    async def write(self, data: bytes) -> None:
        await self._record.result(self.meter.unblock())
        await self._record.result(self._inner.write(data))
        self.meter.add(data)

    async def draw(self, flow: Flow) -> None:
        flow.meter = self.meter
        await self._record.result(draw(self._inner, flow))

    async def aclose(self) -> FileInfo | None:
        await self._record.result(self.meter.unblock())
        info = await self._record.result(self._inner.aclose())
        self._record.done({"content": self.meter.content()})
        return info

    async def abort(self) -> None:
        try:
            await self._inner.abort()
        finally:
            self._record.done({"aborted": True})


class PortRelay:
    """Carry both directions of a port, without digests: the bytes have no meaningful end."""

    def __init__(self, inner: ByteStream, record: Record) -> None:
        self._inner, self._record = inner, record
        self._received, self._sent = Meter(digests=False), record.waking(digests=False)
        out, into = Outbound(inner, self._received, record.part()), Inbound(inner, self._sent, record.part())
        self.read, self.pour, self.write, self.draw = out.read, out.pour, into.write, into.draw

    async def write_eof(self) -> None:
        await self._sent.unblock()
        await self._inner.write_eof()

    async def aclose(self) -> None:
        try:
            await self._inner.aclose()
        finally:
            self._done()

    async def abort(self) -> None:
        try:
            await self._inner.abort()
        finally:
            self._done(aborted=True)

    def _done(self, **how: object) -> None:
        self._record.done({"received_bytes": self._received.length, "sent_bytes": self._sent.length, **how})


class Changes:
    """A ChangeStream."""

    def __init__(self, inner: ChangeStream, record: Record) -> None:
        self._inner, self._record = inner, record
        self._seen = 0

    async def next(self) -> tuple[FileChange, ...]:
        changes = await self._record.result(self._inner.next())
        self._seen += len(changes)
        if not changes:
            self._record.done({"changes": self._seen})
        return changes

    async def aclose(self) -> None:
        try:
            await self._inner.aclose()
        finally:
            self._record.done({"changes": self._seen})
