"""Commands: run to the end, start, attach, list, signal."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping

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
    logged,
)
from paddock.linux.proc import is_running
from paddock.model import mint, replace

from . import validate
from .cleanup import Cleanup
from .files import from_home
from .guard import Collector, Guard, GuardedExec, redacting
from .instance import RunningSandbox
from .outputs import KeptOutput
from .running import LIVE, RunningSandboxes
from .sandboxes import Sandboxes, Turn
from .streams import Outbound, Record

_ORPHAN_SECONDS = 10.0
"""Between two looks at whose callers have died."""


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
        self.running, self.bindings = running, bindings
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
                    self._tasks.start(self._end_orphans(), name="end commands whose callers have gone")
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
                seconds = action.spec.timeout_seconds
                guard = await self._reattach(action.sandbox, id, op, is_kept=True, timeout_seconds=seconds)
            else:
                guard = await self._start(action, id, op, turn)
        except (ProgramNotFoundError, ProgramNotExecutableError) as error:
            return _not_started(id, error, op)
        collector = Collector(guard, action.capture_bytes, f"{self._cleanup.outputs}/{guard.running.id}/{id}")
        try:
            status = await collector.run(action.input)
        finally:
            self.kept.pop(id, None)
            await guard.release(leaves=self.leaves)
        op.done({"status": status, **guard.passed()})
        return model.ExecResult(id=id, status=status, out=collector.out.output(), err=collector.err.output())

    @handles(model.StartExec)
    async def start(self, action: model.StartExec, op: Operation) -> model.ExecHandle:
        validate.check_exec(action.spec)
        turn = Turn()
        try:
            guard = await self._start(action, _id(action), op, turn)
        finally:
            turn.give()
        return GuardedExec(guard, self._tasks, op, typed=action.spec.pty is not None)

    async def _reattach(
        self, sandbox: str, id: model.ExecId, op: Operation, *, is_kept: bool, timeout_seconds: float | None = None
    ) -> Guard:
        async with self._sandboxes.use(sandbox, op) as (row, running):
            before = await _hits(running)  # an earlier limit may not have been its own
            try:
                command = await (running.instance.take_up(id) if is_kept else running.instance.attach(id))
            except NotFoundError:
                if not is_kept:
                    raise
                raise DaemonLostError("it ended with its daemon", unknown=True) from None
            redaction, background = self.bindings.redaction(row.id), not is_kept
            return Guard(self.running, running, before, command, timeout_seconds, redaction, background=background)

    async def _start(
        self, action: model.RunExec | model.StartExec, id: model.ExecId, op: Operation, turn: Turn
    ) -> Guard:
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
                command = await _started(running, spec, id, background=background)
            except GuestProtocolError as error:
                raise await self.running.explained(running, error) from None
            redaction, seconds = self.bindings.redaction(row.id), spec.timeout_seconds
            return Guard(self.running, running, before, command, seconds, redaction, background=background)

    @handles(model.AttachExec)
    async def attach(self, action: model.AttachExec, op: Operation) -> model.ExecHandle:
        id = model.ExecId(action.exec)
        is_kept = await self.is_kept(id)
        guard = await self._reattach(action.sandbox, id, op, is_kept=is_kept)
        return GuardedExec(guard, self._tasks, op, typed=True, kept=self.kept if is_kept else None)

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
            try:
                try:
                    inner = KeptOutput(await asyncio.to_thread(open, path, "rb"))
                except FileNotFoundError:
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


async def _hits(running: RunningSandbox) -> Mapping[model.Limit, int]:
    """Return how often each limit was exceeded until now, before a command starts. Raises SandboxDiedError."""
    strikes = running.instance.strikes()
    return (await running.instance.usage()).strikes if strikes is None else strikes
