"""A running command in a caller's hands: its timeout, its output ceiling and its record hold without the caller."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
from collections.abc import Awaitable, Callable, Mapping

from paddock.backends._stillness import Stopwatch
from paddock.egress._redact import Redaction
from paddock.errors import GuestProtocolError, InvalidState, PaddockError, SandboxDied
from paddock.model import ByteReader, ByteWriter, ExecHandle, ExecId, ExitStatus, FileInfo, Limit, PtySize, replace

from ._attribution import struck
from ._collect import end
from ._gate import Entry
from ._live import Held, Live
from ._redacted import redacted
from ._store import Row
from ._tasks import Tasks

_DIGESTED_BYTES = 1 << 20


class GuardedExec:
    """An ExecHandle around the backend's. `typed`: what goes in is a person's, and no digest of it is recorded."""

    def __init__(
        self,
        inner: ExecHandle,
        *,
        row: Row,
        held: Held,
        live: Live,
        entry: Entry,
        tasks: Tasks,
        before: Mapping[Limit, int],
        timeout_seconds: float | None,
        background: bool,
        typed: bool,
        redaction: Redaction | None = None,
    ) -> None:
        self._inner, self._row, self._held, self._live, self._entry = inner, row, held, live, entry
        self._tasks, self._before, self._timeout, self._background = tasks, before, timeout_seconds, background
        self._limit: Limit | None = None
        self._read_bytes = 0
        self._stdout = None if inner.stdout is None else _CountedReader(redacted(inner.stdout, redaction), self._count)
        self._stderr = None if inner.stderr is None else _CountedReader(redacted(inner.stderr, redaction), self._count)
        stdin = None if inner.stdin is None else _RousingWriter(inner.stdin, self._rouse)
        self._stdin = stdin if stdin is None or typed else _CountedWriter(stdin)
        self._recorded: dict[str, object] | None = None
        self._closing = False
        self._end = tasks.start(self._supervise(), name=f"exec {inner.id}")

    @property
    def id(self) -> ExecId:
        return self._inner.id

    @property
    def pid(self) -> int:
        return self._inner.pid

    @property
    def stdin(self) -> ByteWriter | None:
        return self._stdin

    @property
    def stdout(self) -> ByteReader | None:
        return self._stdout

    @property
    def stderr(self) -> ByteReader | None:
        return self._stderr

    async def wait(self) -> ExitStatus:
        try:
            with self._held.telling_of_pauses():
                ended = await asyncio.shield(self._end)
        except asyncio.CancelledError:
            if self._end.cancelled():
                raise InvalidState("the handle was closed", hint="wait first, or attach again") from None
            raise
        if isinstance(ended, SandboxDied):
            raise await self._live.dead(self._row)
        if isinstance(ended, BaseException):
            raise ended
        return ended

    async def signal(self, number: int) -> None:
        await self._rouse()
        await self._inner.signal(number)

    async def kill(self) -> None:
        await self._rouse()
        await self._inner.kill()

    async def resize(self, size: PtySize) -> None:
        await self._rouse()
        await self._inner.resize(size)

    async def _rouse(self) -> None:
        await self._live.rouse(self._row)

    async def aclose(self) -> None:
        if self._end.done():
            await self._close_inner()
            if self._recorded is not None and self._recorded != (passed := self._passed()):
                self._recorded = passed  # it ended before all was read of what it had printed
                self._entry.afterwards("exec.streams", passed)
            return
        self._closing = True
        self._end.cancel()  # before the command is ended: whoever waits for it hears that the handle was closed
        try:
            await self._close_inner()
        except BaseException as error:
            self._entry.failed(error)
            raise
        self._done({"let_go": self._background, "killed": not self._background})

    async def _close_inner(self) -> None:
        try:
            await self._inner.aclose()
        except GuestProtocolError as error:
            raise await self._live.disobeyed(self._held, error) from None

    async def _supervise(self) -> ExitStatus | Exception:
        """Errors are its result: nobody may be waiting, and the record holds them."""
        try:
            status = await self._watch()
        except asyncio.CancelledError:
            if not self._closing:
                self._done({"let_go": True})
            raise
        except Exception as error:
            self._entry.failed(error)
            return error
        self._done({"status": status})
        return status

    async def _watch(self) -> ExitStatus:
        ended = self._tasks.start(self._inner.wait(), name=f"wait {self.id}", awaited=True)
        try:
            left, stopwatch = self._timeout, Stopwatch(self._held.instance.stillness)
            while not ended.done() and (left is None or left > 0):
                await asyncio.wait((ended,), timeout=left)
                if not ended.done() and self._timeout is not None:
                    left = await stopwatch.left(self._timeout)  # time in which it stood still does not count
            if not ended.done():
                self._limit = self._limit or Limit.TIME
                status = await end(self._inner, self._held.instance.stillness)
            else:
                status = await ended
        except GuestProtocolError as error:
            raise await self._live.disobeyed(self._held, error) from None
        finally:
            ended.cancel()
        if status.limit is not None:
            return status
        if self._limit is not None:
            return replace(status, limit=self._limit)
        error_text = b"" if self._stderr is None else bytes(self._stderr.ending)
        limit = await struck(self._live, self._held, status, self._before, error_text)
        return status if limit is status.limit else replace(status, limit=limit)

    async def _count(self, size: int) -> None:
        self._read_bytes += size
        if self._read_bytes > self._held.limits.output_mib << 20 and self._limit is None:
            self._limit = Limit.OUTPUT
            with contextlib.suppress(PaddockError):
                await self._inner.kill()

    def _done(self, how: dict[str, object]) -> None:
        self._recorded = self._passed()
        self._entry.done({**how, **self._recorded})

    def _passed(self) -> dict[str, object]:
        """Only what the caller has read and written is known."""
        streams = (("out", self._stdout), ("err", self._stderr))
        printed = {name: {"sha256": s.digest.hexdigest(), "length": s.total} for name, s in streams if s is not None}
        written = {"in": self._stdin.told()} if isinstance(self._stdin, _CountedWriter) else {}
        return {"exec": self.id, "pid": self.pid, **written, **printed}


class _RousingWriter:
    """A ByteWriter that wakes the sandbox for what is written to it."""

    def __init__(self, inner: ByteWriter, rouse: Callable[[], Awaitable[None]]) -> None:
        self._inner, self._rouse = inner, rouse

    async def write(self, data: bytes) -> None:
        await self._rouse()
        await self._inner.write(data)

    async def aclose(self) -> FileInfo | None:
        await self._rouse()
        return await self._inner.aclose()

    async def abort(self) -> None:
        await self._inner.abort()


class _CountedReader:
    """A ByteReader that tells how much was read and remembers the end."""

    def __init__(self, inner: ByteReader, count: Callable[[int], Awaitable[None]]) -> None:
        self._inner, self._count = inner, count
        self.digest = hashlib.sha256()
        self.total = 0
        self.ending = bytearray()

    async def read(self, size: int = 65536) -> bytes:
        data = await self._inner.read(size)
        if data:
            self.digest.update(data)
            self.total += len(data)
            self.ending = (self.ending + data[-4096:])[-4096:]
            await self._count(len(data))
        return data

    async def aclose(self) -> None:
        await self._inner.aclose()


class _CountedWriter:
    """A ByteWriter that remembers what was taken: all of its length, and the digest of the first MiB, since that of a
    long input would take as much time again as passing it on."""

    def __init__(self, inner: ByteWriter) -> None:
        self._inner = inner
        self.digest = hashlib.sha256()
        self.total = 0

    async def write(self, data: bytes) -> None:
        await self._inner.write(data)
        if self.total < _DIGESTED_BYTES:
            self.digest.update(data[: _DIGESTED_BYTES - self.total])
        self.total += len(data)

    def told(self) -> dict[str, object]:
        part = {"of_first": _DIGESTED_BYTES} if self.total > _DIGESTED_BYTES else {}
        return {"sha256": self.digest.hexdigest(), "length": self.total, **part}

    async def aclose(self) -> FileInfo | None:
        return await self._inner.aclose()

    async def abort(self) -> None:
        await self._inner.abort()
