"""A running command in a caller's hands: its timeout, its output ceiling and its record hold without the caller."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping
from typing import TYPE_CHECKING

from paddock.backends._pump import Meter
from paddock.backends._stillness import Stopwatch
from paddock.errors import GuestProtocolError, InvalidState, PaddockError, SandboxDied
from paddock.model import ByteReader, ByteWriter, ExecHandle, ExecId, ExitStatus, Limit, PtySize, replace

from ._attribution import struck
from ._collect import end
from ._gate import Entry
from ._live import Held, Live
from ._store import Row
from ._streams import Inbound, Outbound, Record
from ._tasks import Tasks

if TYPE_CHECKING:
    from paddock.egress._redact import Redaction


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
        entry.defer()
        record = Record(row, live, None)
        meters = [
            Meter(
                filter=None if redaction is None else redaction.stream(escapes=False),
                keeps_end=is_error,
                blocked=self._has_printed_too_much,
                unblock=self._end_for_output,
            )
            for is_error in (False, True)
        ]
        self._stdout = None if inner.stdout is None else Outbound(inner.stdout, meters[0], record)
        self._stderr = None if inner.stderr is None else Outbound(inner.stderr, meters[1], record)
        self._meters, self._most = meters, held.limits.output_mib << 20
        waking = record.waking(digests=not typed)
        self._stdin = None if inner.stdin is None else Inbound(inner.stdin, waking, record)
        self._written = None if typed or inner.stdin is None else waking
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
        told = self._held.tell_of_pauses()
        try:
            ended = await asyncio.shield(self._end)
        except asyncio.CancelledError:
            if self._end.cancelled():
                raise InvalidState("the handle was closed", hint="wait first, or attach again") from None
            raise
        finally:
            told()
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
        if self._stderr is not None and self._stderr.flow is not None and status.code != 0:
            await self._stderr.flow.caught_up()
        error_text = self._meters[1].ending
        limit = await struck(self._live, self._held, status, self._before, error_text)
        return status if limit is status.limit else replace(status, limit=limit)

    def _has_printed_too_much(self) -> bool:
        return self._limit is None and self._meters[0].length + self._meters[1].length > self._most

    async def _end_for_output(self) -> None:
        if self._has_printed_too_much():
            self._limit = Limit.OUTPUT
            with contextlib.suppress(PaddockError):
                await self._inner.kill()

    def _done(self, how: dict[str, object]) -> None:
        self._recorded = self._passed()
        self._entry.done({**how, **self._recorded})

    def _passed(self) -> dict[str, object]:
        """Only what the caller has read and written is known."""
        streams = (("out", self._stdout), ("err", self._stderr))
        printed = {name: stream.meter.content() for name, stream in streams if stream is not None}
        written = {} if self._written is None else {"in": self._written.content()}
        return {"exec": self.id, "pid": self.pid, **written, **printed}
