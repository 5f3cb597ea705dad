"""Runs one command to its end: feeds it, reads both streams, keeps its ceilings."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any

from paddock.backends._guest_pipes import PipeReader
from paddock.backends._stillness import Stillness, Stopwatch
from paddock.errors import GuestProtocolError
from paddock.model import ByteReader, ByteWriter, ExecHandle, ExitStatus, Limit, replace

from ._capture import Capture

if TYPE_CHECKING:
    from paddock.egress._redact import Redaction

_SMALL_READ = 1 << 16
_LARGE_READ = 1 << 18
"""Costs malloc(3) a map each time: for streams that fill it."""
_OF_NOTHING = hashlib.sha256().hexdigest()
_FEED_BYTES = 1 << 18
_QUIET_SECONDS = 0.25
_DEATH_SECONDS = 30.0
_SOON_SECONDS = 0.01
"""A pipe holds what a command prints until then. Most have ended, so nothing has to wait for what they print."""


class Collector:
    """One use: `status = await Collector(…).run()`, then the captures hold what was printed."""

    def __init__(
        self,
        handle: ExecHandle,
        out: Capture,
        err: Capture,
        *,
        input: bytes | None,
        most_bytes: int,
        redaction: Redaction | None = None,
        stillness: Stillness | None = None,
    ) -> None:
        self._stillness = stillness or Stillness()
        self._handle, self._input, self._most, self._redaction = handle, input, most_bytes, redaction
        self._streams = ((handle.stdout, out), (handle.stderr, err))
        self._read = 0
        self._digests: dict[int, Any] = {}
        self.limit: Limit | None = None

    async def run(self, timeout_seconds: float | None) -> ExitStatus:
        """Returns when the command has ended and what it printed is read.

        What it left running may hold its streams open for ever: then it is enough that nothing has come
        for a quarter of a second. Everything that the command itself printed was in the pipe when it ended.
        """
        pumps: list[asyncio.Task[None]] = []
        timer = None if self._has_ended() else asyncio.get_running_loop().call_later(_SOON_SECONDS, self._start, pumps)
        fed: list[asyncio.Task[None]] = []
        if self._input is not None and self._handle.stdin is not None:
            fed.append(self._task(_feed(self._handle.stdin, self._input)))
        try:
            status = await self._wait(timeout_seconds)
            if pumps or not self._has_ended():
                self._start(pumps)
                await self._drain(pumps)
                for pump in pumps:
                    if pump.done():
                        pump.result()
            else:
                if timer is not None:
                    timer.cancel()
                for index, (reader, capture) in enumerate(self._streams):
                    if reader is not None:
                        await self._pump(index, reader, capture)
        finally:
            if timer is not None:
                timer.cancel()
            tasks = pumps + fed
            left = [task for task in tasks if not task.done()]
            for task in left:
                task.cancel()
            if left:
                await asyncio.wait(left)
            for task in tasks:
                if not task.cancelled():
                    task.exception()  # seen: the first one that matters was raised above
        if self.limit is not None:
            status = replace(status, limit=self.limit)
        return status

    def _start(self, pumps: list[asyncio.Task[None]]) -> None:
        """Read both streams, unless that has begun."""
        if not pumps:
            for index, (reader, capture) in enumerate(self._streams):
                if reader is not None:
                    pumps.append(self._task(self._pump(index, reader, capture)))

    def _has_ended(self) -> bool:
        """The command has ended already, and what it printed lies in its pipes: no read waits."""
        return all(isinstance(reader, PipeReader) and reader.is_cut for reader, _ in self._streams)

    async def _wait(self, timeout_seconds: float | None) -> ExitStatus:
        if timeout_seconds is None:
            return await self._handle.wait()
        status = await _status(self._handle, timeout_seconds, self._stillness)
        if status is not None:
            return status
        if self.limit is None:
            self.limit = Limit.TIME
        status = await end(self._handle, self._stillness)
        if self.limit is Limit.TIME and status.code is not None and status.duration_seconds < timeout_seconds:
            self.limit = None  # it had ended by itself, and in time: it is we who have stood still, or were slow
        return status

    async def _drain(self, pumps: list[asyncio.Task[Any]]) -> None:
        pending = {pump for pump in pumps if not pump.done()}
        while pending:
            before = self._read
            _, pending = await asyncio.wait(pending, timeout=_QUIET_SECONDS)
            if pending and (self._read == before or self._read > self._most):  # what is beyond is not kept
                return

    async def _pump(self, index: int, reader: ByteReader, capture: Capture) -> None:
        stream = None if self._redaction is None else self._redaction.stream(escapes=False)
        size = _SMALL_READ
        try:
            while data := await reader.read(size):
                size = _LARGE_READ if len(data) >= size else _SMALL_READ
                self._keep(index, capture, data if stream is None else stream.feed(data))
                if self._read > self._most and self.limit is None:
                    self.limit = Limit.OUTPUT
                    await self._handle.kill()
        finally:
            if stream is not None:
                self._keep(index, capture, stream.end())

    def _keep(self, index: int, capture: Capture, data: bytes) -> None:
        room = self._most - self._read
        self._read += len(data)
        if room > 0:
            data = data[:room]
            if index not in self._digests:
                self._digests[index] = hashlib.sha256()
            self._digests[index].update(data)
            capture.add(data)

    def digest(self, index: int) -> str:
        """Of what was kept of stdout (0) or stderr (1)."""
        return self._digests[index].hexdigest() if index in self._digests else _OF_NOTHING

    def _task(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        return asyncio.get_running_loop().create_task(work)


async def _status(handle: ExecHandle, seconds: float, stillness: Stillness) -> ExitStatus | None:
    """None: it runs on after so many seconds. Those in which it stood still do not count."""
    left, stopwatch = seconds, Stopwatch(stillness)
    while left > 0:
        timeout = asyncio.timeout(left)
        try:
            async with timeout:
                return await handle.wait()
        except TimeoutError:
            if not timeout.expired():
                raise
        left = await stopwatch.left(seconds)
    return None


async def end(handle: ExecHandle, stillness: Stillness) -> ExitStatus:
    """Kills it. GuestProtocolError with its id as `unended` if the guest does not say that it has ended."""
    await handle.kill()
    status = await _status(handle, _DEATH_SECONDS, stillness)
    if status is None:
        raise GuestProtocolError(
            f"command {handle.id} was killed, and its end is not told", hint="kill the sandbox", unended=handle.id
        )
    return status


async def _feed(stdin: ByteWriter, data: bytes) -> None:
    view = memoryview(data)
    # A command need not read what it is given.
    with contextlib.suppress(BrokenPipeError, ConnectionError):
        for start in range(0, len(view), _FEED_BYTES):
            await stdin.write(bytes(view[start : start + _FEED_BYTES]))
        await stdin.aclose()
