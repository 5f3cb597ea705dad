"""Follow one command to its end, and hold it to its limits. Captures read what it prints, or its caller does."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any

from paddock.backends.base import Command, KeptExec
from paddock.backends.guest.pipes import PipeReader
from paddock.backends.pause_clock import within
from paddock.backends.pump import Meter
from paddock.daemon.context import Operation
from paddock.daemon.tasks import Tasks
from paddock.errors import GuestProtocolError, InvalidStateError, SandboxDiedError, logged
from paddock.model import ByteReader, ExecId, ExitStatus, Limit, PtySize, Usage, replace

from .instance import RunningSandbox
from .outputs import Capture
from .running import RunningSandboxes
from .streams import Inbound, Outbound, Record

if TYPE_CHECKING:
    from paddock.gateway.rules.redaction import Redaction

_log = logging.getLogger("paddock")
_SMALL_READ = 1 << 16
_LARGE_READ = 1 << 18
"""Costs malloc(3) a map each time: for streams that fill it."""
_QUIET_SECONDS = 0.25
_DEATH_SECONDS = 30.0
_SOON_SECONDS = 0.01
"""A pipe holds what a command prints until then. Most have ended: nothing has to wait for what they print, or hold it
for the next daemon."""
# In this order: a memory kill explains what a fork that failed only accompanied.
_COUNTED = (Limit.MEMORY, Limit.PROCESSES, Limit.INODES, Limit.DISK)
_DISK_SLACK_BYTES = 1 << 20
# The kernel counts none of these: it tells only the program. (The quota may be that of a workspace.)
_MESSAGES = (
    (b"Too many open files", Limit.OPEN_FILES),
    (b"File too large", Limit.DISK),
    (b"Disk quota exceeded", Limit.DISK),
)


class Guard:
    """Hold a command to its timeout and its output limit, redact what it prints, and tell which limit it hit.

    `before`: how often each limit of its sandbox had been exceeded until it started.
    """

    def __init__(
        self,
        sandboxes: RunningSandboxes,
        running: RunningSandbox,
        before: Mapping[Limit, int],
        command: Command,
        timeout_seconds: float | None,
        redaction: Redaction | None,
        *,
        background: bool,
    ) -> None:
        self.sandboxes, self.running, self.command, self.background = sandboxes, running, command, background
        self._before = before
        # Of a background command the backend keeps the time, also when this service is dead.
        self._timeout = None if background else timeout_seconds
        self.out, self.err = redacting(redaction), redacting(redaction, keeps_end=True)
        streams = (("out", command.stdout, self.out), ("err", command.stderr, self.err))
        self.meters = {name: meter for name, reader, meter in streams if reader is not None}
        """Of the streams that the record tells of."""
        self._most = running.limits.output_mib << 20
        self.has_printed_too_much = False
        self._keeping: asyncio.TimerHandle | asyncio.Task[None] | None = None

    async def ended(self, begin: Callable[[], None], read_rest: Callable[[bool], Awaitable[bytes]]) -> ExitStatus:
        """Wait for its end.

        Calls `begin` once its output may be read: first a command that runs for longer than most do is kept for the
        next daemon. At its end `read_rest` reads what is left. For a command that failed it returns the last bytes.
        """
        if self.background:
            begin()
        elif not self.has_ended():
            self._keeping = asyncio.get_running_loop().call_later(_SOON_SECONDS, self._keep_now, begin)
        try:
            try:
                status = await self._finish()
                if isinstance(self._keeping, asyncio.Task):
                    await self._keeping
            finally:
                if self._keeping is not None:
                    self._keeping.cancel()
            has_failed = status.limit is None and status.code != 0
            error_text = await read_rest(has_failed)
        except (SandboxDiedError, GuestProtocolError) as error:
            raise await self.sandboxes.explained(self.running, error) from None
        if self.has_printed_too_much:
            return replace(status, limit=Limit.OUTPUT)
        if has_failed:
            with logged("find the limit that was hit", self.running.id):
                return replace(status, limit=await self._limit_hit(status, error_text))
        return status

    def has_ended(self) -> bool:
        """Tell whether the command has ended and what it printed lies in its pipes: no read waits."""
        return isinstance(reader := self.command.stdout, PipeReader) and reader.is_cut

    async def release(self, *, leaves: bool = False) -> None:
        """Release the command: one in the foreground is killed. If this daemon `leaves`, the next one continues a kept
        command."""
        try:
            await (self.command.leave() if leaves else self.command.aclose())
        except (SandboxDiedError, GuestProtocolError) as error:
            raise await self.sandboxes.explained(self.running, error) from None

    def passed(self) -> dict[str, object]:
        """Return what has passed through its streams so far, for the record."""
        passed = {name: meter.content() for name, meter in self.meters.items()}
        return {"exec": self.command.id, "pid": self.command.pid, **passed}

    @property
    def room(self) -> int:
        """How many bytes it may still print."""
        return self._most - self.out.length - self.err.length

    async def end_for_output(self) -> None:
        if not self.has_printed_too_much:
            self.has_printed_too_much = True
            with logged("kill the command that printed too much", self.command.id):
                await self.command.kill()

    def prints_too_much(self) -> bool:
        return self.room < 0 and not self.has_printed_too_much

    def _keep_now(self, begin: Callable[[], None]) -> None:
        self._keeping = asyncio.get_running_loop().create_task(self._keep(begin))

    async def _keep(self, begin: Callable[[], None]) -> None:
        try:
            await self.command.keep(self._timeout)
        except Exception as error:  # any error: its output still has to be read
            _log.info("command %s ends with this daemon: %s", self.command.id, error)
        begin()

    async def _finish(self) -> ExitStatus:
        """Wait for its end, and kill it when its time is over. GuestProtocolError with its id as `unended` if the guest
        doesn't say that it has ended then."""
        if self._timeout is None:
            return await self.command.wait()
        clock = self.running.instance.pause_clock
        if (status := await within(self._timeout, clock, self.command.wait)) is not None:
            return status
        await self.command.kill()
        if (status := await within(_DEATH_SECONDS, clock, self.command.wait)) is None:
            id = self.command.id
            raise GuestProtocolError(
                f"command {id} was killed, and its end is not told", hint="kill the sandbox", unended=id
            )
        if status.code is not None and status.duration_seconds < self._timeout:
            return status  # it had ended by itself, and in time: it is we who have stood still, or were slow
        return replace(status, limit=Limit.TIME)

    async def _limit_hit(self, status: ExitStatus, error_text: bytes) -> Limit | None:
        """Return the limit that a command which failed has exceeded.

        A limit that an earlier command hit is never attributed to it. Commands that run at the same time share the
        hits: no counter says whose they were.
        """
        if status.exit_code == 128 + signal.SIGXFSZ:  # a file met RLIMIT_FSIZE, the limit without a quota
            return Limit.DISK
        usage = await self.sandboxes.usage(self.running)
        for limit in _COUNTED:
            if usage.strikes.get(limit, 0) > self._before.get(limit, 0):
                return limit
        if self._is_full(usage) and self._is_full(await self.sandboxes.settled_disk(self.running)):
            return Limit.DISK
        return next((limit for message, limit in _MESSAGES if message in error_text), None)

    def _is_full(self, usage: Usage) -> bool:
        most = self.running.limits.disk_mib << 20
        return usage.disk_bytes is not None and usage.disk_bytes >= most - _DISK_SLACK_BYTES


class Collector:
    """Run a command for a caller that waits for its output: captures of `capture_bytes` each read it."""

    def __init__(self, guard: Guard, capture_bytes: int, spool: str) -> None:
        self._guard = guard
        self.out = Capture(capture_bytes, spool + ".out", guard.running)
        self.err = Capture(capture_bytes, spool + ".err", guard.running)
        streams = ((guard.command.stdout, self.out, guard.out), (guard.command.stderr, self.err, guard.err))
        self._streams = [(reader, capture, meter) for reader, capture, meter in streams if reader is not None]
        self._pumps: list[asyncio.Task[None]] = []

    async def run(self, input: bytes | None) -> ExitStatus:
        """Wait until the command has ended and its output is read.

        Processes that it left running may hold its streams open for ever. Then a quarter of a second without output is
        enough: all that the command itself printed was in the pipe when it ended.
        """
        fed: list[asyncio.Task[None]] = []
        if input is not None and self._guard.command.stdin is not None:
            fed.append(asyncio.get_running_loop().create_task(_feed(self._guard.command, input)))
        stop_telling = self._guard.running.tell_of_pauses()
        try:
            return await self._guard.ended(self._begin, self._read_rest)
        finally:
            stop_telling()
            if tasks := (*self._pumps, *fed):
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
            self.out.close()
            self.err.close()

    def _begin(self) -> None:
        """Read both streams."""
        loop = asyncio.get_running_loop()
        self._pumps.extend(loop.create_task(self._pump(*stream)) for stream in self._streams)

    async def _read_rest(self, has_failed: bool) -> bytes:
        if not self._pumps:
            if self._guard.has_ended():
                for stream in self._streams:
                    await self._pump(*stream)
            else:
                self._begin()
        pending = set(self._pumps)
        while pending:
            before = self._guard.room
            done, pending = await asyncio.wait(pending, timeout=_QUIET_SECONDS)
            for pump in done:
                pump.result()
            if pending and (self._guard.room == before or self._guard.has_printed_too_much):
                break  # what is beyond the limit is not kept
        return self.err.ending() or self.out.ending() if has_failed else b""

    async def _pump(self, reader: ByteReader, capture: Capture, meter: Meter) -> None:
        size = _SMALL_READ
        try:
            while data := await reader.read(size):
                size = _LARGE_READ if len(data) >= size else _SMALL_READ
                if not self._keep(capture, meter, meter.feed(data)):
                    await self._guard.end_for_output()
        finally:
            if held_back := meter.feed(b""):
                self._keep(capture, meter, held_back)

    def _keep(self, capture: Capture, meter: Meter, data: bytes) -> bool:
        """Keep what is within the output limit. Return whether that was all."""
        kept = data[: self._guard.room]
        meter.add(kept)
        capture.add(kept)
        return len(kept) == len(data)


class GuardedExec:
    """Guard a command for a caller that reads it by itself. Timeout, output limit and record hold without the caller.

    `typed`: a person types the input, so no digest of it is recorded. `kept`: the commands that an earlier daemon kept,
    if this is one of them.
    """

    def __init__(
        self, guard: Guard, tasks: Tasks, op: Operation, *, typed: bool, kept: dict[ExecId, KeptExec] | None = None
    ) -> None:
        op.defer()
        self._guard, self._op, self._kept = guard, op, kept
        self.taken_up = kept is not None
        """Its caller follows it already, and has begun to read."""
        command, record = guard.command, Record(guard.running.row, guard.sandboxes, None)
        self.id, self.pid = command.id, command.pid
        # A guard that did this by itself would leave a cycle of references to the garbage collector after each `exec`.
        for meter in (guard.out, guard.err):
            meter.blocked, meter.unblock = guard.prints_too_much, guard.end_for_output
        self._readable = asyncio.Event()
        out, err = command.stdout, command.stderr
        self.stdout = None if out is None else Outbound(out, guard.out, record, after=self._readable)
        self.stderr = None if err is None else Outbound(err, guard.err, record, after=self._readable)
        waking = record.waking(digests=not typed)
        self.stdin = None if command.stdin is None else Inbound(command.stdin, waking, record)
        if self.stdin is not None and not typed:
            guard.meters["in"] = waking
        self._recorded: dict[str, object] | None = None
        self._closing = False
        self._end = tasks.start(self._supervise(), name=f"exec {command.id}")

    async def leave(self) -> None:
        """Release a command that its caller never got. A kept one continues until the caller asks again."""
        if not self.taken_up:
            await self.aclose()
            return
        self._end.cancel()
        await self._guard.release(leaves=True)

    async def wait(self) -> ExitStatus:
        stop_telling = self._guard.running.tell_of_pauses()
        try:
            ended = await asyncio.shield(self._end)
        except asyncio.CancelledError:
            if self._end.cancelled():
                raise InvalidStateError("the handle was closed", hint="wait first, or attach again") from None
            raise
        finally:
            stop_telling()
        if isinstance(ended, Exception):
            raise ended
        return ended

    async def signal(self, number: int) -> None:
        await self._resume()
        await self._guard.command.signal(number)

    async def kill(self) -> None:
        await self._resume()
        await self._guard.command.kill()

    async def resize(self, size: PtySize) -> None:
        await self._resume()
        await self._guard.command.resize(size)

    async def _resume(self) -> None:
        await self._guard.sandboxes.resume_for_input(self._guard.running.row)

    async def aclose(self) -> None:
        if self._kept is not None:
            self._kept.pop(self.id, None)
        had_ended = self._end.done()
        self._closing = True
        self._end.cancel()  # before the command's end: a waiting caller gets the error that the handle is closed
        try:
            await self._guard.release()
        except BaseException as error:
            self._op.failed(error)
            raise
        if not had_ended:
            self._done({"let_go": self._guard.background, "killed": not self._guard.background})
        elif self._recorded is not None and self._recorded != (passed := self._guard.passed()):
            self._recorded = passed  # it ended before all was read of what it had printed
            self._op.amend("exec.streams", passed)

    async def _supervise(self) -> ExitStatus | Exception:
        """Return errors as a result: no caller may be waiting, and the record holds them."""
        try:
            await asyncio.sleep(0)  # the caller begins to read before this looks at what was printed
            status = await self._guard.ended(self._readable.set, self._read_rest)
        except asyncio.CancelledError:
            if not self._closing:
                self._done({"let_go": True})
            raise
        except Exception as error:
            self._op.failed(error)
            return error
        finally:
            self._readable.set()
        self._done({"status": status})
        return status

    async def _read_rest(self, has_failed: bool) -> bytes:
        """Let the caller read. Of a failed command wait for the end of stderr, as far as the caller takes it."""
        self._readable.set()
        await asyncio.sleep(0)  # the waiting caller begins to read
        if has_failed and self.stderr is not None and self.stderr.flow is not None:
            await self.stderr.flow.caught_up()
        return self._guard.err.ending

    def _done(self, how: dict[str, object]) -> None:
        self._recorded = self._guard.passed()
        self._op.done({**how, **self._recorded})


def redacting(redaction: Redaction | None, **options: Any) -> Meter:
    """Return the meter of what a command prints."""
    return Meter(filter=None if redaction is None else redaction.stream(escapes=False), **options)


async def _feed(command: Command, data: bytes) -> None:
    # A command need not read its input.
    with contextlib.suppress(BrokenPipeError, ConnectionError):
        await command.feed(data)
