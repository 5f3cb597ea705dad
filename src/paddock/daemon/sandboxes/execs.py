"""Commands: run to the end, start, attach, list, signal."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from paddock import model
from paddock.backends.base import Backend, Command, KeptExec
from paddock.daemon.access.policies import Policies
from paddock.daemon.access.secrets import SecretBindings
from paddock.daemon.context import Component, Context, Operation, handles
from paddock.daemon.store.database import Row
from paddock.errors import (
    DaemonLostError,
    GuestProtocolError,
    InvalidStateError,
    NotFoundError,
    PaddockError,
    ProgramNotExecutableError,
    ProgramNotFoundError,
    SandboxDiedError,
    logged,
)
from paddock.linux.proc import is_running
from paddock.model import mint, replace

from . import validate
from .cleanup import Cleanup
from .collect import Capture, Collector, KeepLater, finish, kept, redacting
from .files import from_home
from .instance import RunningSandbox
from .running import LIVE, RunningSandboxes
from .sandboxes import Sandboxes, Turn
from .streams import Inbound, Outbound, Record

# In this order: a memory kill explains what a fork that failed only accompanied.
_COUNTED = (model.Limit.MEMORY, model.Limit.PROCESSES, model.Limit.INODES, model.Limit.DISK)
_DISK_SLACK_BYTES = 1 << 20
_ORPHAN_SECONDS = 10.0
"""Between two looks at whose callers have died."""
# The kernel counts none of these: it tells only the program. (The quota may be that of a workspace.)
_MESSAGES = (
    (b"Too many open files", model.Limit.OPEN_FILES),
    (b"File too large", model.Limit.DISK),
    (b"Disk quota exceeded", model.Limit.DISK),
)


class StartedCommand(NamedTuple):
    """Hold a command in the guest's table. `before`: how often each limit had been exceeded until then."""

    row: Row
    running: RunningSandbox
    before: Mapping[model.Limit, int]
    handle: Command


class Execs(Component):
    def __init__(
        self,
        context: Context,
        sandboxes: Sandboxes,
        running: RunningSandboxes,
        cleanup: Cleanup,
        bindings: SecretBindings,
        policies: Policies,
    ) -> None:
        super().__init__(context)
        self._sandboxes, self._cleanup, self._policies = sandboxes, cleanup, policies
        self.running, self.bindings, self.tasks = running, bindings, context.tasks
        self.kept: dict[model.ExecId, KeptExec] = {}
        """Commands of an earlier daemon, until they are closed: their callers may ask for the results."""
        self.leaves = False
        """This daemon leaves, and the next one takes over kept commands."""
        self._unasked: list[Backend] = []
        """Backends that could not say yet what an earlier daemon kept: their supervisor hangs."""
        self._own: set[model.ExecId] = set()
        """Commands that this daemon has started meanwhile, and keeps itself."""
        self._learning = asyncio.Lock()

    async def recover(self, backends: Iterable[Backend]) -> None:
        self._unasked += backends
        await self.learn()

    async def learn(self) -> None:
        """Learn which commands an earlier daemon kept, as far as that is not known yet. End those that no caller can
        ask for."""
        async with self._learning:
            while self._unasked:
                found = await self._unasked[0].kept()
                del self._unasked[0]
                news = {id: command for id, command in found.items() if id not in self._own}
                if news and not self.kept:
                    self.tasks.start(self._end_orphans(), name="end commands whose callers have gone")
                self.kept.update(news)
            self._own.clear()

    async def is_kept(self, id: model.ExecId) -> bool:
        """Tell whether an earlier daemon kept a command."""
        with logged("learn which commands an earlier daemon kept: asked for", id):
            await self.learn()
        return id in self.kept

    async def _end_orphans(self) -> None:
        """End commands whose program has died. One that lives may ask for its command whenever it next looks at it."""
        while self.kept:
            await asyncio.sleep(_ORPHAN_SECONDS)
            for id, (sandbox, owner) in tuple(self.kept.items()):
                if not _owner_lives(owner):
                    self.kept.pop(id, None)
                    with logged("end the command", id):
                        await self._end(id, sandbox)

    async def _end(self, id: model.ExecId, sandbox: model.SandboxId) -> None:
        row = self._store.get(sandbox)
        if row is not None and row.state in LIVE:
            running = await self.running.get_or_adopt(row)
            await (await running.instance.take_up(id)).aclose()

    @handles(model.RunExec)
    async def run(self, action: model.RunExec, op: Operation) -> model.ExecResult:
        validate.check_exec(action.spec)
        validate.check_range("capture_bytes", action.capture_bytes, 0, 1 << 30, " (1 GiB)")
        id, turn = _id(action), Turn()
        op.on_end(turn.give)
        try:
            if id in self.kept:
                started = await self._reattach(action.sandbox, id, op, is_kept=True)
            else:
                started = await self._start(action, id, op, turn)
        except (ProgramNotFoundError, ProgramNotExecutableError) as error:
            return _not_started(id, error, op)
        row, running, _, handle = started
        spool = f"{self._cleanup.outputs}/{row.id}/{id}"
        out = Capture(action.capture_bytes, spool + ".out", running.outputs)
        err = Capture(action.capture_bytes, spool + ".err", running.outputs)
        collector = Collector(
            handle,
            out,
            err,
            input=action.input,
            most_bytes=running.limits.output_mib << 20,
            redaction=self.bindings.redaction(row.id),
            pause_clock=running.instance.pause_clock,
        )
        stop_telling = running.tell_of_pauses()
        try:
            try:
                status = await collector.run(action.spec.timeout_seconds)
            finally:
                stop_telling()
                self.kept.pop(id, None)
                await (handle.leave() if self.leaves else handle.aclose())
            status = await _with_limit(self.running, started, status, err.ending() or out.ending())
        except SandboxDiedError:
            raise await self.running.dead(row) from None
        except GuestProtocolError as error:
            raise await self.running.disobeyed(running, error) from None
        finally:
            out.close()
            err.close()
        printed = {name: meter.content() for name, meter in zip(("out", "err"), collector.meters, strict=True)}
        op.done({"exec": id, "pid": handle.pid, "status": status, **printed})
        return model.ExecResult(id=id, status=status, out=out.output(), err=err.output())

    @handles(model.StartExec)
    async def start(self, action: model.StartExec, op: Operation) -> model.ExecHandle:
        validate.check_exec(action.spec)
        turn = Turn()
        try:
            started = await self._start(action, _id(action), op, turn)
        finally:
            turn.give()
        # Of a background command the backend keeps the time, also when this service is dead.
        timeout_seconds = None if action.background else action.spec.timeout_seconds
        typed = action.spec.pty is not None
        return GuardedExec(
            self, started, op, timeout_seconds=timeout_seconds, background=action.background, typed=typed
        )

    async def _reattach(self, sandbox: str, id: model.ExecId, op: Operation, *, is_kept: bool) -> StartedCommand:
        async with self._sandboxes.use(sandbox, op) as (row, running):
            before = await _hits(running)  # an earlier limit may not have been its own
            found = running.instance.take_up(id) if is_kept else running.instance.attach(id)
            try:
                return StartedCommand(row, running, before, await found)
            except NotFoundError:
                if not is_kept:
                    raise
                raise DaemonLostError("it ended with its daemon", unknown=True) from None

    async def _start(
        self, action: model.RunExec | model.StartExec, id: model.ExecId, op: Operation, turn: Turn
    ) -> StartedCommand:
        """Start a command. The lane is shared only until the command is in the guest's table, so a long command delays
        no pause."""
        if self._unasked:
            self._own.add(id)
        async with self._sandboxes.use(action.sandbox, op, turn=turn) as (row, running):
            _check_revision(row, action.expect_revision)
            spec = action.spec
            if row.sandbox.policy is not None:
                await self._policies.command(action, row, op)
                spec = await self.bindings.in_environment(row, spec)
                spec = await self._policies.in_environment(row, spec)
            if isinstance(action, model.RunExec) and spec.stdin is not (action.input is not None):
                # Only `input` writes to the pipe: without it the command reads an end at once.
                spec = replace(spec, stdin=action.input is not None)
            if spec.cwd is not None:
                spec = replace(spec, cwd=await from_home(spec.cwd, spec.user, running.instance))
            background = isinstance(action, model.StartExec) and action.background
            try:
                before = await _hits(running)
                return StartedCommand(row, running, before, await _started(running, spec, id, background=background))
            except GuestProtocolError as error:
                raise await self.running.disobeyed(running, error) from None

    @handles(model.AttachExec)
    async def attach(self, action: model.AttachExec, op: Operation) -> model.ExecHandle:
        id = model.ExecId(action.exec)
        is_kept = await self.is_kept(id)
        started = await self._reattach(action.sandbox, id, op, is_kept=is_kept)
        return GuardedExec(self, started, op, background=not is_kept, typed=True, is_kept=is_kept)

    @handles(model.ListExecs)
    async def list(self, action: model.ListExecs, op: Operation) -> tuple[model.ExecInfo, ...]:
        async with self._sandboxes.use(action.sandbox, op) as (_, running):
            return await running.instance.execs()

    @handles(model.ReadOutput)
    async def output(self, action: model.ReadOutput, op: Operation) -> model.ByteReader:
        validate.check_exec_id(action.exec)
        ending, number = (".out", 1) if action.stream == "stdout" else (".err", 2)
        async with self._sandboxes.use(action.sandbox, op) as (row, running):
            path = f"{self._cleanup.outputs}/{row.id}/{action.exec}{ending}"
            inner: model.ByteReader | None = await asyncio.to_thread(kept, path)
            try:
                if inner is None:
                    inner = await running.instance.output(model.ExecId(action.exec), number)
            except NotFoundError:
                raise NotFoundError(
                    f"nothing is kept of {action.exec}: only of what runs in the background, and of what a result had"
                    " no room for",
                    hint=f"paddock logs {row.id}",
                ) from None
        return Outbound(inner, redacting(self.bindings.redaction(row.id)), Record(row, self.running, op))

    @handles(model.SignalExec)
    async def signal(self, action: model.SignalExec, op: Operation) -> None:
        validate.check_range("signal", action.signal, 1, 64)
        async with self._sandboxes.use(action.sandbox, op) as (_, running):
            await running.instance.signal_exec(model.ExecId(action.exec), action.signal)


async def _started(running: RunningSandbox, spec: model.ExecSpec, id: model.ExecId, *, background: bool) -> Command:
    """Start a command. A shell line runs in `/bin/sh` where its own shell is missing."""
    if spec.shell and not running.lacks_bash:
        try:
            return await running.instance.start(spec, id=id, background=background)
        except ProgramNotFoundError:
            running.lacks_bash = True
    if spec.shell:
        spec = replace(spec, argv=("/bin/sh", *spec.argv[1:]))
    return await running.instance.start(spec, id=id, background=background)


def _owner_lives(owner: str) -> bool:
    """Tell whether a process lives, by its `SessionProcess.name`. One of another pid namespace, seen as 0, does."""
    return owner.startswith("0 ") or is_running(owner)


def _not_started(id: model.ExecId, error: PaddockError, op: Operation) -> model.ExecResult:
    """Say it as a shell does (POSIX, 2.8.2): the program that asked for the command knows what to do with that."""
    code = 127 if isinstance(error, ProgramNotFoundError) else 126
    status, text = model.ExitStatus(code=code, signal=None, duration_seconds=0.0), error.message.encode() + b"\n"
    op.done({"exec": id, "status": status, "refused": error.message})
    return model.ExecResult(
        id=id, status=status, out=model.Output(), err=model.Output(head=text, total_bytes=len(text))
    )


def _id(action: model.RunExec | model.StartExec) -> model.ExecId:
    if action.id is None:
        return model.ExecId(mint(model.IdPrefix.EXEC))
    validate.check_exec_id(action.id)
    return model.ExecId(action.id)


def _check_revision(row: Row, expected: str | None) -> None:
    now = row.sandbox.policy
    if expected is not None and expected != now:
        raise InvalidStateError(
            f"sandbox {row.id} has the policy {now or 'without network'}, not {expected}",
            hint=f"paddock policy show {row.id}",
            policy=now,
        )


class GuardedExec:
    """Guard a command for its caller: timeout, output limit and record hold without it.

    `typed`: a person types the input, so no digest of it is recorded.
    """

    def __init__(
        self,
        execs: Execs,
        started: StartedCommand,
        op: Operation,
        *,
        timeout_seconds: float | None = None,
        background: bool,
        typed: bool,
        is_kept: bool = False,
    ) -> None:
        self._execs, self._start, self._running, self._op = execs, started, execs.running, op
        self._row, self._sandbox, _, self._inner = started
        self._timeout, self._background = timeout_seconds, background
        inner, record = self._inner, Record(self._row, self._running, None)
        self.taken_up = is_kept
        """Its caller follows it already, and has begun to read."""
        redaction = execs.bindings.redaction(self._row.id)
        op.defer()
        self.id, self.pid = inner.id, inner.pid
        self._printed_too_much = False
        meters = [
            redacting(redaction, keeps_end=is_error, blocked=self._prints_too_much, unblock=self._end_for_output)
            for is_error in (False, True)
        ]
        self._meters, self._most = meters, self._sandbox.limits.output_mib << 20
        self._drained = asyncio.Event()
        self._outlives = None if background else KeepLater(inner, timeout_seconds, self._drained.set)
        if background:
            self._drained.set()
        self.stdout, self.stderr = (
            None if reader is None else Outbound(reader, meter, record, after=self._drained)
            for reader, meter in zip((inner.stdout, inner.stderr), meters, strict=True)
        )
        waking = record.waking(digests=not typed)
        self.stdin = None if inner.stdin is None else Inbound(inner.stdin, waking, record)
        self._written = None if typed or inner.stdin is None else waking
        self._recorded: dict[str, object] | None = None
        self._closing = False
        self._end = execs.tasks.start(self._supervise(), name=f"exec {inner.id}")

    async def leave(self) -> None:
        """Release a command that its caller never got. A kept one continues until the caller asks again."""
        if not self.taken_up:
            await self.aclose()
            return
        self._end.cancel()
        await self._inner.leave()

    async def wait(self) -> model.ExitStatus:
        stop_telling = self._sandbox.tell_of_pauses()
        try:
            ended = await asyncio.shield(self._end)
        except asyncio.CancelledError:
            if self._end.cancelled():
                raise InvalidStateError("the handle was closed", hint="wait first, or attach again") from None
            raise
        finally:
            stop_telling()
        if isinstance(ended, SandboxDiedError):
            raise await self._running.dead(self._row)
        if isinstance(ended, BaseException):
            raise ended
        return ended

    async def signal(self, number: int) -> None:
        await self._running.resume_for_input(self._row)
        await self._inner.signal(number)

    async def kill(self) -> None:
        await self._running.resume_for_input(self._row)
        await self._inner.kill()

    async def resize(self, size: model.PtySize) -> None:
        await self._running.resume_for_input(self._row)
        await self._inner.resize(size)

    async def aclose(self) -> None:
        if self.taken_up:
            self._execs.kept.pop(self.id, None)
        if self._end.done():
            await self._close_inner()
            if self._recorded is not None and self._recorded != (passed := self._passed()):
                self._recorded = passed  # it ended before all was read of what it had printed
                self._op.amend("exec.streams", passed)
            return
        self._closing = True
        self._end.cancel()  # before the command's end: a waiting caller gets the error that the handle is closed
        try:
            await self._close_inner()
        except BaseException as error:
            self._op.failed(error)
            raise
        self._done({"let_go": self._background, "killed": not self._background})

    async def _close_inner(self) -> None:
        try:
            await self._inner.aclose()
        except GuestProtocolError as error:
            raise await self._running.disobeyed(self._sandbox, error) from None

    async def _supervise(self) -> model.ExitStatus | Exception:
        """Return errors as a result: no caller may be waiting, and the record holds them."""
        try:
            await asyncio.sleep(0)  # the caller begins to read before this looks at what was printed
            status = await self._watch()
        except asyncio.CancelledError:
            if not self._closing:
                self._done({"let_go": True})
            raise
        except Exception as error:
            self._op.failed(error)
            return error
        finally:
            if self._outlives is not None:
                self._outlives.stop()
            self._drained.set()
        self._done({"status": status})
        return status

    async def _watch(self) -> model.ExitStatus:
        try:
            status = await finish(self._inner, self._timeout, self._sandbox.instance.pause_clock)
        except GuestProtocolError as error:
            raise await self._running.disobeyed(self._sandbox, error) from None
        if self._outlives is not None:
            await self._outlives.over()
            self._drained.set()
            await asyncio.sleep(0)  # the waiting caller begins to read
        if self._printed_too_much:
            return replace(status, limit=model.Limit.OUTPUT)
        if status.limit is None and status.code != 0 and self.stderr is not None and self.stderr.flow is not None:
            await self.stderr.flow.caught_up()
        return await _with_limit(self._running, self._start, status, self._meters[1].ending)

    def _prints_too_much(self) -> bool:
        return not self._printed_too_much and sum(meter.length for meter in self._meters) > self._most

    async def _end_for_output(self) -> None:
        if self._prints_too_much():
            self._printed_too_much = True
            with logged("kill the command that printed too much", self.id):
                await self._inner.kill()

    def _done(self, how: dict[str, object]) -> None:
        self._recorded = self._passed()
        self._op.done({**how, **self._recorded})

    def _passed(self) -> dict[str, object]:
        """Return what the caller has read and written so far."""
        streams = (("out", self.stdout), ("err", self.stderr))
        printed = {name: stream.meter.content() for name, stream in streams if stream is not None}
        written = {} if self._written is None else {"in": self._written.content()}
        return {"exec": self.id, "pid": self.pid, **written, **printed}


async def _hits(running: RunningSandbox) -> Mapping[model.Limit, int]:
    """Return how often each limit was exceeded until now, before a command starts. Raises SandboxDiedError."""
    strikes = running.instance.strikes()
    return (await running.instance.usage()).strikes if strikes is None else strikes


async def _with_limit(
    sandboxes: RunningSandboxes, started: StartedCommand, status: model.ExitStatus, error_text: bytes
) -> model.ExitStatus:
    """Say which limit a command that failed has exceeded. Exit 0 costs nothing.

    A limit that an earlier command hit is never attributed to it. Commands that run at the same time share the hits:
    no counter says whose they were.
    """
    if status.limit is not None or status.code == 0:
        return status
    with logged("find the limit that was hit", started.row.id):
        return replace(status, limit=await _limit_hit(sandboxes, started, status, error_text))
    return status


async def _limit_hit(
    sandboxes: RunningSandboxes, started: StartedCommand, status: model.ExitStatus, error_text: bytes
) -> model.Limit | None:
    if status.exit_code == 128 + signal.SIGXFSZ:  # a file met RLIMIT_FSIZE, the limit without a quota
        return model.Limit.DISK
    running = started.running
    usage = await sandboxes.usage(running)
    for limit in _COUNTED:
        if usage.strikes.get(limit, 0) > started.before.get(limit, 0):
            return limit
    if _is_full(running, usage) and _is_full(running, await sandboxes.settled_disk(running)):
        return model.Limit.DISK
    return next((limit for message, limit in _MESSAGES if message in error_text), None)


def _is_full(running: RunningSandbox, usage: model.Usage) -> bool:
    return usage.disk_bytes is not None and usage.disk_bytes >= (running.limits.disk_mib << 20) - _DISK_SLACK_BYTES
