"""Commands: run to the end, start, attach, list, signal."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from paddock.backends._pump import Meter
from paddock.errors import (
    GuestProtocolError,
    InvalidState,
    NotFound,
    PaddockError,
    ProgramNotExecutableError,
    ProgramNotFoundError,
    SandboxDied,
)
from paddock.model import (
    AttachExec,
    ByteReader,
    ExecHandle,
    ExecId,
    ExecInfo,
    ExecResult,
    ExitStatus,
    Limit,
    ListExecs,
    Noun,
    Output,
    ReadOutput,
    RunExec,
    SignalExec,
    StartExec,
    mint,
    replace,
)

from . import _validate
from ._attribution import counted, struck
from ._capture import Capture, kept
from ._collect import Collector
from ._conduct import Conduct
from ._context import Component, Context
from ._gate import Entry
from ._handlers import handles
from ._handles import GuardedExec
from ._live import Held, Live
from ._remains import Remains
from ._sandboxes import Sandboxes, Turn
from ._secret_leases import Leases
from ._store import Row
from ._streams import Outbound, Record


class Execs(Component):
    def __init__(
        self, context: Context, sandboxes: Sandboxes, live: Live, remains: Remains, leases: Leases, conduct: Conduct
    ) -> None:
        super().__init__(context)
        self._sandboxes, self._live, self._remains = sandboxes, live, remains
        self._leases, self._conduct = leases, conduct

    @handles(RunExec)
    async def run(self, action: RunExec, entry: Entry) -> ExecResult:
        _validate.check_run(action)
        turn = Turn()
        try:
            return await self._run(action, _id(action), entry, turn)
        finally:
            turn.give()

    async def _run(self, action: RunExec, id: ExecId, entry: Entry, turn: Turn) -> ExecResult:
        try:
            row, held, before, handle = await self._started(action, id, entry, turn)
        except (ProgramNotFoundError, ProgramNotExecutableError) as error:
            return _unstarted(id, error, entry)
        spool = f"{self._remains.outputs}/{row.id}/{id}"
        out = Capture(action.capture_bytes, spool + ".out")
        err = Capture(action.capture_bytes, spool + ".err")
        try:
            try:
                most, redaction = held.limits.output_mib << 20, self._leases.redaction(row.id)
                collector = Collector(
                    handle,
                    out,
                    err,
                    input=action.input,
                    most_bytes=most,
                    redaction=redaction,
                    stillness=held.instance.stillness,
                )
                told = held.tell_of_pauses()
                try:
                    status = await collector.run(action.spec.timeout_seconds)
                finally:
                    told()
            finally:
                await handle.aclose()
            limit = status.limit
            if status.code != 0:
                limit = await struck(self._live, held, status, before, err.ending() or out.ending())
        except SandboxDied:
            raise await self._live.dead(row) from None
        except GuestProtocolError as error:
            raise await self._live.disobeyed(held, error) from None
        finally:
            out.close()
            err.close()
        if limit is not status.limit:
            status = replace(status, limit=limit)
        result = ExecResult(id=id, status=status, out=out.output(), err=err.output())
        entry.done(
            {
                "exec": id,
                "pid": handle.pid,
                "status": status,
                "out": {"sha256": collector.digest(0), "length": out.total},
                "err": {"sha256": collector.digest(1), "length": err.total},
            }
        )
        return result

    @handles(StartExec)
    async def start(self, action: StartExec, entry: Entry) -> ExecHandle:
        _validate.check_exec(action.spec)
        turn = Turn()
        try:
            row, held, before, handle = await self._started(action, _id(action), entry, turn)
        finally:
            turn.give()
        # Of a background command the backend keeps the time, also when this service is dead.
        timeout_seconds = None if action.background else action.spec.timeout_seconds
        return self._guarded(
            handle,
            row,
            held,
            entry,
            before,
            timeout_seconds=timeout_seconds,
            background=action.background,
            typed=action.spec.pty is not None,
        )

    async def _started(
        self, action: RunExec | StartExec, id: ExecId, entry: Entry, turn: Turn
    ) -> tuple[Row, Held, Mapping[Limit, int], ExecHandle]:
        """The lane is held until it is in the guest's table, and no longer: what runs for an hour delays no pause."""
        async with self._sandboxes.use(action.sandbox, entry, turn=turn) as (row, held):
            _check_revision(row, action.expect_revision)
            spec = action.spec
            if row.sandbox.policy is not None:
                await self._conduct.command(action, row, entry)
                spec = await self._leases.in_environment(row, spec)
            if isinstance(action, RunExec) and spec.stdin is not (action.input is not None):
                # There is nobody to write to a pipe but `input`: without one the command reads an end, not for ever.
                spec = replace(spec, stdin=action.input is not None)
            background = isinstance(action, StartExec) and action.background
            try:
                before = await counted(held)
                return row, held, before, await held.instance.start(spec, id=id, background=background)
            except GuestProtocolError as error:
                raise await self._live.disobeyed(held, error) from None

    @handles(AttachExec)
    async def attach(self, action: AttachExec, entry: Entry) -> ExecHandle:
        async with self._sandboxes.use(action.sandbox, entry) as (row, held):
            before = await counted(held)  # of what struck earlier, nobody knows whether it ran then
            handle = await held.instance.attach(ExecId(action.exec))
        return self._guarded(handle, row, held, entry, before, timeout_seconds=None, background=True, typed=True)

    def _guarded(
        self,
        handle: ExecHandle,
        row: Row,
        held: Held,
        entry: Entry,
        before: Mapping[Limit, int],
        *,
        timeout_seconds: float | None,
        background: bool,
        typed: bool,
    ) -> GuardedExec:
        return GuardedExec(
            handle,
            row=row,
            held=held,
            live=self._live,
            entry=entry,
            tasks=self._tasks,
            before=before,
            timeout_seconds=timeout_seconds,
            background=background,
            typed=typed,
            redaction=self._leases.redaction(row.id),
        )

    @handles(ListExecs)
    async def list(self, action: ListExecs, entry: Entry) -> tuple[ExecInfo, ...]:
        async with self._sandboxes.use(action.sandbox, entry) as (_, held):
            return await held.instance.execs()

    @handles(ReadOutput)
    async def output(self, action: ReadOutput, entry: Entry) -> ByteReader:
        _validate.check_exec_id(action.exec)
        ending, number = (".out", 1) if action.stream == "stdout" else (".err", 2)
        async with self._sandboxes.use(action.sandbox, entry) as (row, held):
            path = f"{self._remains.outputs}/{row.id}/{action.exec}{ending}"
            inner: ByteReader | None = await asyncio.to_thread(kept, path)
            try:
                if inner is None:
                    inner = await held.instance.output(ExecId(action.exec), number)
            except NotFound:
                raise NotFound(
                    f"nothing is kept of {action.exec}: only of what runs in the background, and of what a result had"
                    " no room for",
                    hint=f"paddock logs {row.id}",
                ) from None
        redaction = self._leases.redaction(row.id)
        filter = None if redaction is None else redaction.stream(escapes=False)
        return Outbound(inner, Meter(filter=filter), Record(row, self._live, entry))

    @handles(SignalExec)
    async def signal(self, action: SignalExec, entry: Entry) -> None:
        _validate.check_signal(action.signal)
        async with self._sandboxes.use(action.sandbox, entry) as (_, held):
            await held.instance.signal_exec(ExecId(action.exec), action.signal)


def _unstarted(id: ExecId, error: PaddockError, entry: Entry) -> ExecResult:
    """Say it as a shell does (POSIX, 2.8.2): the program that asked for the command knows what to do with that."""
    code = 127 if isinstance(error, ProgramNotFoundError) else 126
    status, said = ExitStatus(code=code, signal=None, duration_seconds=0.0), error.message.encode() + b"\n"
    entry.done({"exec": id, "status": status, "refused": error.message})
    return ExecResult(id=id, status=status, out=Output(), err=Output(head=said, total_bytes=len(said)))


def _id(action: RunExec | StartExec) -> ExecId:
    if action.id is None:
        return ExecId(mint(Noun.EXEC))
    _validate.check_exec_id(action.id)
    return ExecId(action.id)


def _check_revision(row: Row, expected: str | None) -> None:
    now = row.sandbox.policy
    if expected is not None and expected != now:
        raise InvalidState(
            f"sandbox {row.id} has the policy {now or 'without network'}, not {expected}",
            hint=f"paddock policy show {row.id}",
            policy=now,
        )
