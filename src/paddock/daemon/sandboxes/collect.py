"""Run one command to its end: its input, its output, and the limits of both.

Memory holds the beginning and end of each stream; a file has all of it if these are not all.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from paddock.backends.base import Command
from paddock.backends.guest.pipes import PipeReader
from paddock.backends.pause_clock import PauseClock, Stopwatch
from paddock.backends.pump import Meter
from paddock.errors import GuestProtocolError
from paddock.model import ByteReader, ExecHandle, ExitStatus, Limit, Limits, Output, replace

if TYPE_CHECKING:
    from paddock.gateway.rules.redaction import Redaction

_log = logging.getLogger("paddock")
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
_SMALL_READ = 1 << 16
_LARGE_READ = 1 << 18
"""Costs malloc(3) a map each time: for streams that fill it."""
_QUIET_SECONDS = 0.25
_DEATH_SECONDS = 30.0
_SOON_SECONDS = 0.01
"""A pipe holds what a command prints until then. Most have ended: nothing has to wait for what they print, or hold it
for the next daemon."""


class OutputQuota:
    """Count the bytes that outputs of one sandbox may still take on the host's disk: at first its `disk_mib`."""

    def __init__(self, limits: Limits) -> None:
        self.left = max(limits.disk_mib, limits.output_mib) << 20

    def take(self, size: int) -> None:
        """Take so many bytes. Raises OSError if less is left."""
        if size > self.left:
            raise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT))
        self.left -= size


class Capture:
    """Capture at most `limit` bytes. If more comes, all of it goes to `spool` as well, from the first byte on."""

    def __init__(self, limit: int, spool: str, quota: OutputQuota) -> None:
        self._quota, self._kept = quota, 0
        self._head_size = (limit + 1) // 2
        self._tail_size = limit // 2
        self._head = bytearray()
        self._tail = bytearray()
        self._spool = spool
        self._file: BinaryIO | None = None
        self._spooling = True
        self._spooled = False
        self.total = 0

    def add(self, data: bytes) -> None:
        if self.total + len(data) > self._head_size + self._tail_size and self._spooling:
            self._keep(data)
        self.total += len(data)
        room = self._head_size - len(self._head)
        if room > 0:
            self._head += data[:room]
            data = data[room:]
        if not data:
            return
        self._tail += data[-self._tail_size :] if self._tail_size else b""
        # Trimmed now and then: cutting one buffer at each read would move its bytes at each read.
        if len(self._tail) > 2 * self._tail_size + 65536:
            del self._tail[: len(self._tail) - self._tail_size]

    def ending(self, size: int = 4096) -> bytes:
        """Return the last bytes, for looking into."""
        return bytes(self._tail[-size:] or self._head[-size:])

    def output(self) -> Output:
        """Return the output. Closes the file."""
        self.close()
        return Output(
            head=bytes(self._head),
            tail=bytes(self._tail[-self._tail_size :]) if self._tail_size else b"",
            total_bytes=self.total,
            file=self._spool if self._spooled and self._spooling else None,
        )

    def close(self) -> None:
        """Close the file. Without room on disk for the buffered rest, delete it."""
        file, self._file = self._file, None
        if file is None:
            return
        try:
            file.close()
        except OSError:
            self._discard()

    def _keep(self, data: bytes) -> None:
        try:
            if self._file is None:
                folder = Path(self._spool).parent
                for place in (folder.parent, folder):
                    place.mkdir(mode=0o700, exist_ok=True)
                self._file = os.fdopen(os.open(self._spool, _NEW, 0o600), "wb")
                self._spooled = True
                data = b"".join((self._head, self._tail, data))  # memory has all of it until now
            self._quota.take(len(data))
            self._kept += len(data)
            self._file.write(data)
        except OSError:
            # A full disk of the host doesn't fail the command: the result says that the file is missing.
            self.close()
            self._discard()

    def _discard(self) -> None:
        self._spooling = False
        _remove(self._spool)
        self._quota.left += self._kept
        self._kept = 0


def kept(path: str) -> KeptOutput | None:
    """Return the output kept there, if any."""
    try:
        return KeptOutput(open(path, "rb"))
    except FileNotFoundError:
        return None


class KeptOutput:
    """A ByteReader of a file of ours, which lies on the host."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file

    async def read(self, size: int = 65536) -> bytes:
        return self._file.read(size)

    async def aclose(self) -> None:
        self._file.close()


def _remove(path: str) -> None:
    with contextlib.suppress(OSError):
        os.unlink(path)


class KeepLater:
    """Has a command kept that runs for longer than most do, and then calls `then`: reading may begin."""

    def __init__(self, handle: Command, timeout_seconds: float | None, then: Callable[[], None]) -> None:
        self._handle, self._timeout, self._then = handle, timeout_seconds, then
        self._archiver: asyncio.Task[None] | None = None
        self._timer = asyncio.get_running_loop().call_later(_SOON_SECONDS, self._begin)

    async def over(self) -> bool:
        """Note that the command has ended. Return whether `then` was called, or never will be."""
        self._timer.cancel()
        if self._archiver is None:
            return False
        await self._archiver
        return True

    def stop(self) -> None:
        """Stop, in any state of the command."""
        self._timer.cancel()
        if self._archiver is not None:
            self._archiver.cancel()

    def _begin(self) -> None:
        self._archiver = asyncio.get_running_loop().create_task(self._keep())

    async def _keep(self) -> None:
        try:
            await self._handle.keep(self._timeout)
        except Exception as error:  # any error: its output still has to be read
            _log.info("command %s ends with this daemon: %s", self._handle.id, error)
        self._then()


class Collector:
    """Collect one command's output: after `status = await Collector(…).run()` the captures hold it."""

    def __init__(
        self,
        handle: Command,
        out: Capture,
        err: Capture,
        *,
        input: bytes | None,
        most_bytes: int,
        redaction: Redaction | None,
        pause_clock: PauseClock,
    ) -> None:
        self._handle, self._input, self._most, self._pause_clock = handle, input, most_bytes, pause_clock
        self.meters = out_meter, err_meter = redacting(redaction), redacting(redaction)
        streams = ((handle.stdout, out, out_meter), (handle.stderr, err, err_meter))
        self._streams = [(reader, capture, meter) for reader, capture, meter in streams if reader is not None]
        self._pumps: list[asyncio.Task[None]] = []
        self._read = 0
        self._limit: Limit | None = None

    async def run(self, timeout_seconds: float | None) -> ExitStatus:
        """Wait until the command has ended and its output is read.

        Processes that it left running may hold its streams open for ever. Then a quarter of a second without output is
        enough: all that the command itself printed was in the pipe when it ended.
        """
        outlives = None if self._has_ended() else KeepLater(self._handle, timeout_seconds, self._start)
        fed: list[asyncio.Task[None]] = []
        if self._input is not None and self._handle.stdin is not None:
            fed.append(asyncio.get_running_loop().create_task(_feed(self._handle, self._input)))
        try:
            status = await finish(self._handle, timeout_seconds, self._pause_clock)
            if outlives is None or not await outlives.over():
                if not self._has_ended():
                    self._start()
                else:
                    for stream in self._streams:
                        await self._pump(*stream)
            await self._drain()
        finally:
            if outlives is not None:
                outlives.stop()
            if tasks := (*self._pumps, *fed):
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
        return status if self._limit is None else replace(status, limit=self._limit)

    def _start(self) -> None:
        """Read both streams."""
        loop = asyncio.get_running_loop()
        self._pumps.extend(loop.create_task(self._pump(*stream)) for stream in self._streams)

    def _has_ended(self) -> bool:
        """Tell whether the command has ended and what it printed lies in its pipes: no read waits."""
        return all(isinstance(reader, PipeReader) and reader.is_cut for reader, _, _ in self._streams)

    async def _drain(self) -> None:
        pending = set(self._pumps)
        while pending:
            before = self._read
            done, pending = await asyncio.wait(pending, timeout=_QUIET_SECONDS)
            for pump in done:
                pump.result()
            if pending and (self._read == before or self._read > self._most):  # what is beyond is not kept
                return

    async def _pump(self, reader: ByteReader, capture: Capture, meter: Meter) -> None:
        size = _SMALL_READ
        try:
            while data := await reader.read(size):
                size = _LARGE_READ if len(data) >= size else _SMALL_READ
                self._keep(capture, meter, meter.feed(data))
                if self._read > self._most and self._limit is None:
                    self._limit = Limit.OUTPUT
                    await self._handle.kill()
        finally:
            self._keep(capture, meter, meter.feed(b""))

    def _keep(self, capture: Capture, meter: Meter, data: bytes) -> None:
        room = self._most - self._read
        self._read += len(data)
        if room > 0:
            meter.add(data[:room])
            capture.add(data[:room])


def redacting(redaction: Redaction | None, **options: Any) -> Meter:
    """Return the meter of what a command prints."""
    return Meter(filter=None if redaction is None else redaction.stream(escapes=False), **options)


async def finish(handle: ExecHandle, timeout_seconds: float | None, pause_clock: PauseClock) -> ExitStatus:
    """Wait for the end of a command, and kill it when its time is over. GuestProtocolError with its id as `unended` if
    the guest does not say that it has ended then."""
    if timeout_seconds is None:
        return await handle.wait()
    status = await _status(handle, timeout_seconds, pause_clock)
    if status is not None:
        return status
    await handle.kill()
    status = await _status(handle, _DEATH_SECONDS, pause_clock)
    if status is None:
        raise GuestProtocolError(
            f"command {handle.id} was killed, and its end is not told", hint="kill the sandbox", unended=handle.id
        )
    if status.code is not None and status.duration_seconds < timeout_seconds:
        return status  # it had ended by itself, and in time: it is we who have stood still, or were slow
    return replace(status, limit=Limit.TIME)


async def _status(handle: ExecHandle, seconds: float, pause_clock: PauseClock) -> ExitStatus | None:
    """None: it runs on after so many seconds. Those in which it stood still do not count."""
    left, stopwatch = seconds, Stopwatch(pause_clock)
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


async def _feed(handle: Command, data: bytes) -> None:
    # A command need not read its input.
    with contextlib.suppress(BrokenPipeError, ConnectionError):
        await handle.feed(data)
