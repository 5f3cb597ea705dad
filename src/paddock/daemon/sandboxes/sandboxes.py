"""Sandboxes: find, use, list, extend, pause, kill."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from functools import partial
from typing import TypeAlias, TypeVar
from weakref import WeakValueDictionary

from paddock import model
from paddock.daemon.access.gateways import Gateways
from paddock.daemon.access.policies import Policies
from paddock.daemon.context import Component, Context, Operation, handles
from paddock.daemon.lanes import Hold, KilledMeanwhile
from paddock.daemon.store.database import LEAST_PREFIX, Row, WorkspaceStore, exactly_one, has_ended
from paddock.errors import InvalidArgumentError, InvalidStateError, NotFoundError, PaddockError, SandboxDiedError
from paddock.model import Inspection, Recording, Sandbox, SandboxId, Snapshot, State, Usage, died, nested_principal

from . import _ttl, validate
from .instance import RunningSandbox
from .restore import Restore
from .running import LIVE, SESSION_ENDED, RunningSandboxes
from .snapshots import Snapshots

T = TypeVar("T")
Work: TypeAlias = Callable[[Row, RunningSandbox], Awaitable[Row]]
_TURN_SECONDS = 0.02
"""A command that runs for longer, or is not started by then, lets the next one of its sandbox begin."""
_CROWD_SECONDS = 1.0
"""For so long after commands in two sandboxes, those of one sandbox take turns."""


class Sandboxes(Component):
    def __init__(
        self,
        context: Context,
        running: RunningSandboxes,
        snapshots: Snapshots,
        policies: Policies,
        restoring: Restore,
        gateways: Gateways,
    ) -> None:
        super().__init__(context)
        self._running, self._snapshots = running, snapshots
        self._policies, self._restore, self._gateways = policies, restoring, gateways
        self._spaces = WorkspaceStore(self._store)
        self._turns: WeakValueDictionary[SandboxId, asyncio.Lock] = WeakValueDictionary()
        self._latest: SandboxId | None = None
        self._changed = -_CROWD_SECONDS

    @handles(model.GetSandbox)
    async def get(self, action: model.GetSandbox, op: Operation) -> Sandbox:
        row = await self._running.check(self.find(action.sandbox, op))
        self._store.join(row.id, op.session)
        return row.sandbox

    @handles(model.ListSandboxes)
    async def list(self, action: model.ListSandboxes, op: Operation) -> tuple[Sandbox, ...]:
        rows = await self._running.check_all(self._store.list(op.principal.id, ended=action.ended))
        return tuple(row.sandbox for row in rows if action.ended or not has_ended(row))

    @handles(model.ExtendSandbox)
    async def extend(self, action: model.ExtendSandbox, op: Operation) -> Sandbox:
        validate.check_ttl(action.ttl_seconds)
        row, running = await self.reach(action.sandbox, op)
        if row.state is State.PAUSED or running.instance.pause_clock.now:
            # Its pid 1 keeps the time too, and has to hear.
            async with self.use(row.id, op) as (row, running):  # another one, if it was woken from disk
                pass

        async def turn() -> Sandbox:
            deadline = self._clock.boottime() + action.ttl_seconds
            before = self._store.existing(row.id)
            # The row first: if the daemon dies now, or the supervisor, the next adoption tells the sandbox.
            self._set_deadline(before, deadline)
            try:
                await running.instance.set_deadline(deadline)
            except BaseException:
                await self._running.release(row.id)  # its next adoption tells it what is recorded then
                self._store.set_deadline(before)
                raise
            return self._set_deadline(self._store.existing(row.id), deadline).sandbox

        return await self._finish(turn(), row)

    def _set_deadline(self, row: Row, deadline: float) -> Row:
        now = row if row.deadline == deadline else _ttl.running(row, self._clock, deadline)
        if now is not row and not self._store.set_deadline(now):
            raise died(self._store.existing(row.id).sandbox)
        return now

    @handles(model.KillSandbox)
    async def kill(self, action: model.KillSandbox, op: Operation) -> Sandbox:
        row = self.find(action.sandbox, op)
        return (await self._running.kill(row.id, f"killed by {op.principal.name}", op)).sandbox

    async def end(self, id: SandboxId) -> None:
        """End one whose program has ended, unless it has ended by itself."""
        if self._store.get(id) is not None:
            await self._running.kill(id, SESSION_ENDED)

    @handles(model.PauseSandbox)
    async def pause(self, action: model.PauseSandbox, op: Operation) -> Sandbox:
        row = self.find(action.sandbox, op)

        async def turn() -> Sandbox:
            async with self._lanes.exclusive(row.id):
                now = await self._restore.complete(self._store.existing(row.id))
                if now.hibernated and (now := await self._running.check(now)).hibernated:
                    return now.sandbox
                now, running = await self._instance(now)
                paused = self._restore.hibernate if action.to_disk else self._running.pause
                return (await paused(now, running, force=action.force)).sandbox

        return await self._finish(turn(), row)

    @handles(model.ResumeSandbox)
    async def resume(self, action: model.ResumeSandbox, op: Operation) -> Sandbox:
        return await self._alone(action.sandbox, op, self._running.resume)

    @handles(model.RollbackSandbox)
    async def rollback(self, action: model.RollbackSandbox, op: Operation) -> Sandbox:
        return await self._alone(action.sandbox, op, partial(self._restore.rollback, action, op))

    async def _alone(self, reference: str, op: Operation, work: Work) -> Sandbox:
        """Change a sandbox whose lane this holds alone. Once begun it continues even if the caller leaves."""
        row = self.find(reference, op)

        async def turn() -> Sandbox:
            async with self.exclusive(row.id, op) as (now, running):
                return (await work(now, running)).sandbox

        return await self._finish(turn(), row)

    async def _finish(self, work: Coroutine[None, None, Sandbox], row: Row) -> Sandbox:
        """Run to the end even if the caller leaves."""
        async with self.explain_death(row):
            return await self._tasks.finish(work, name=f"sandbox {row.id}: pause, resume, rollback or extend")

    @handles(model.GetUsage)
    async def usage(self, action: model.GetUsage, op: Operation) -> Usage:
        if (hibernated := self.find(action.sandbox, op)).hibernated:
            disk = await asyncio.to_thread(self._pool().usage, hibernated.id)
            return Usage(memory_bytes=0, processes=0, disk_bytes=None if disk is None else disk.used_bytes)
        row, running = await self.reach(action.sandbox, op)
        async with self.explain_death(row):
            return await self._running.usage(running)

    @handles(model.ListProcesses)
    async def processes(self, action: model.ListProcesses, op: Operation) -> tuple[model.Process, ...]:
        if self.find(action.sandbox, op).hibernated:
            return ()
        row, running = await self.reach(action.sandbox, op)
        async with self.explain_death(row):
            return await running.instance.processes()

    @handles(model.InspectSandbox)
    async def inspect(self, action: model.InspectSandbox, op: Operation) -> Inspection:
        row = await self._running.check(self.find(action.sandbox, op))
        if row.state not in LIVE or row.hibernated:
            return Inspection(sandbox=row.sandbox)
        try:
            running = await self._running.get_or_adopt(row)
            usage = await self._running.usage(running)
            posture = await running.instance.posture()
        except SandboxDiedError:
            return Inspection(sandbox=(await self._running.check(self._store.get(row.id) or row)).sandbox)
        enforced = tuple(sorted(running.backend.capabilities.enforced))
        return Inspection(sandbox=row.sandbox, usage=usage, enforced=enforced, posture=posture)

    @handles(model.CreateSnapshot)
    async def snapshot(self, action: model.CreateSnapshot, op: Operation) -> Snapshot:
        async with self.exclusive(action.sandbox, op) as (row, running):
            return await self._snapshots.create(action, row, running, op)

    @handles(model.ListSnapshots)
    async def snapshots(self, action: model.ListSnapshots, op: Operation) -> tuple[Snapshot, ...]:
        source = None if action.sandbox is None else self.find(action.sandbox, op).id
        return self._snapshots.list(source, op)

    @handles(model.SetPolicy)
    async def set_policy(self, action: model.SetPolicy, op: Operation) -> Sandbox:
        async with self.use(action.sandbox, op, awake=False) as (row, _):
            return await self._policies.set(action, row, op)

    @handles(model.GetPolicy)
    async def policy(self, action: model.GetPolicy, op: Operation) -> model.PolicyRevision:
        return await self._policies.get(self.find(action.sandbox, op))

    @handles(model.StartRecording)
    async def start_recording(self, action: model.StartRecording, op: Operation) -> None:
        await self._order(Gateways.start_recording, action.sandbox, op)

    @handles(model.TakeRecording)
    async def take_recording(self, action: model.TakeRecording, op: Operation) -> Recording:
        taken = await self._order(Gateways.take_recording, action.sandbox, op)
        op.done({"exchanges": len(taken.exchanges), "omitted": len(taken.omitted)})
        return taken

    async def _order(self, order: Callable[[Gateways, Row], Awaitable[T]], sandbox: str, op: Operation) -> T:
        row, _ = await self.reach(sandbox, op)
        if row.sandbox.policy is None:
            raise InvalidStateError(f"{row.id} has no network: there is nothing to record", hint="paddock policy set")
        try:
            return await order(self._gateways, row)
        except NotFoundError:  # its gateway has died, and it isn't open at another one yet
            await self._policies.resume(row)
            return await order(self._gateways, row)

    @handles(model.ListTemplates)
    async def templates(self, action: model.ListTemplates, op: Operation) -> tuple[model.TemplateInfo, ...]:
        return await asyncio.to_thread(self._templates().list)

    def find(self, reference: str, op: Operation) -> Row:
        """By id, name of a living one, unique prefix of an id, or name of the last ended one; only one's own."""
        row = self._find(reference, op.principal.id)
        op.sandbox = row.id
        return row

    def _find(self, reference: str, owner: str) -> Row:
        row = self._store.get(reference)
        if row is not None and self._may_name(owner, row):
            return row
        row = self._store.by_name(owner, reference, living=True)
        if row is not None:
            return row
        if reference.startswith(model.IdPrefix.SANDBOX):
            if len(reference) < LEAST_PREFIX:
                raise InvalidArgumentError(
                    f"{reference!r} is too short: a prefix has {LEAST_PREFIX} characters or more"
                )
            if found := self._store.by_prefix(owner, reference):
                return exactly_one(found, "sandbox", reference, hint="")
        row = self._store.by_name(owner, reference, living=False)
        if row is not None:
            return row
        task = self._spaces.named(owner, reference)
        hint = f"its workspace is there: paddock up --task {reference}" if task else "`paddock ls --all` lists them"
        raise NotFoundError(f"no sandbox {reference!r}", hint=hint, sandbox=reference)

    def _may_name(self, owner: str, row: Row) -> bool:
        """Tell whether an owner may name it: its own, those made inside its own, and, for a program inside one, that
        one."""
        if owner == row.sandbox.owner or owner == nested_principal(row.id).id:
            return True
        outer = model.Principal(row.sandbox.owner).sandbox
        around = None if outer is None else self._store.get(outer)
        return around is not None and around.sandbox.owner == owner

    def use(self, reference: str, op: Operation, *, awake: bool = True, turn: Turn | None = None) -> Use:
        """Share the lane of a running sandbox, and wake it first (unless not `awake`). Nothing pauses or restores it in
        the block, which should end when the started work is in the guest's table. Raises SandboxDiedError with the time
        and reason of its end. With a `turn`, enter the block when that has come."""
        row = self.find(reference, op)
        if turn is not None and self._crowded(row.id):
            turn.line = self._turns.setdefault(row.id, asyncio.Lock())
        return Use(self, row, self._lanes.shared(row.id), op, awake, turn)

    def _crowded(self, id: SandboxId) -> bool:
        """Whether commands of two sandboxes began not long ago, the one that begins now among them."""
        now = asyncio.get_running_loop().time()
        if id != self._latest:
            self._changed, self._latest = -_CROWD_SECONDS if self._latest is None else now, id
        return now < self._changed + _CROWD_SECONDS

    async def used(self, row: Row, hold: Hold, op: Operation, awake: bool) -> tuple[Row, RunningSandbox]:
        """Return the sandbox as it runs, while `hold` shares its lane."""
        row = self._store.existing(row.id)
        if row.restoring is not None or row.state is State.CREATING:
            await hold.exclude()
            row, running = await self._restored(row.id, op)
            hold.share()
        else:
            row, running = await self._instance(row)
        if awake:
            row = await self._awake(row, running, hold, op)
        return row, running

    async def _awake(self, row: Row, running: RunningSandbox, hold: Hold, op: Operation) -> Row:
        """Wake it, one caller for all. If it paused itself, it stays awake until the outcome is known."""
        if row.state is State.PAUSED or running.instance.pause_clock.now:
            await hold.exclude()
            row, running = await self._restored(row.id, op)
            if row.state is State.PAUSED or running.instance.pause_clock.now:
                row = await self._running.wake(row, running, op)
            hold.share()
        if row.sandbox.spec.idle_seconds is not None:
            op.on_end(await running.instance.stay_awake())
        return row

    @asynccontextmanager
    async def exclusive(self, reference: str, op: Operation) -> AsyncGenerator[tuple[Row, RunningSandbox]]:
        """Hold the lane of a sandbox alone. A paused one stays so; a hibernated one is woken."""
        row = self.find(reference, op)
        async with self.explain_death(row), self._lanes.exclusive(row.id):
            yield await self._restored(row.id, op)

    async def reach(self, reference: str, op: Operation) -> tuple[Row, RunningSandbox]:
        """Return the same for those who look, and hold no lane."""
        row = self.find(reference, op)
        if row.restoring is not None or row.state is State.CREATING:
            async with self.exclusive(row.id, op) as found:
                return found
        return await self._instance(row)

    async def _restored(self, id: SandboxId, op: Operation) -> tuple[Row, RunningSandbox]:
        """Complete an interruption, or wake it from disk, and return it running. The caller holds the lane alone."""
        row = self._store.existing(id)
        return await self._instance(row if row.restoring is None else await self._restore.wake(row, op))

    async def _instance(self, row: Row) -> tuple[Row, RunningSandbox]:
        if has_ended(row):
            raise died(row.sandbox)
        if row.state not in LIVE:
            raise InvalidStateError(
                f"sandbox {row.id} is {row.state.value}", hint="wait until it runs", state=row.state.value
            )
        return row, await self._running.get_or_adopt(row)

    @asynccontextmanager
    async def explain_death(self, row: Row) -> AsyncGenerator[None]:
        """Explain in the error when and why the sandbox died if it ended the block. If a kill cancelled the block, wait
        for the kill first."""
        try:
            yield
        except (KilledMeanwhile, SandboxDiedError) as error:
            raise await self.explain(error, row) from None

    async def explain(self, error: KilledMeanwhile | SandboxDiedError, row: Row) -> PaddockError:
        if isinstance(error, KilledMeanwhile):
            return await self._killed_by(error)
        return error if error.details.get("sandbox") not in (None, row.id) else await self._running.dead(row)

    async def _killed_by(self, overtaken: KilledMeanwhile) -> PaddockError:
        async with self._lanes.shared(overtaken.id):
            row = self._store.existing(SandboxId(overtaken.id))
        if has_ended(row):
            return died(row.sandbox)
        return InvalidStateError(f"{overtaken}, and that failed", hint="try again", sandbox=row.id)


class Turn:
    """Let commands of several sandboxes take turns, in the order of their requests: a flood of one delays others by one
    command. A waiting task holds nothing. A turn lasts until `give`, or `_TURN_SECONDS`."""

    line: asyncio.Lock | None = None
    _late: asyncio.TimerHandle | None = None

    async def take(self) -> None:
        if self.line is not None:
            await self.line.acquire()
            self._late = asyncio.get_running_loop().call_later(_TURN_SECONDS, self.give)

    def give(self) -> None:
        if self.line is not None and self._late is not None:
            self._late.cancel()
            self._late = None
            self.line.release()


class Use:
    """`Sandboxes.use`. No generator, since every command enters one."""

    def __init__(
        self, sandboxes: Sandboxes, row: Row, hold: Hold, op: Operation, awake: bool, turn: Turn | None
    ) -> None:
        self._sandboxes, self._row, self._hold, self._op, self._awake = sandboxes, row, hold, op, awake
        self._turn = turn

    async def __aenter__(self) -> tuple[Row, RunningSandbox]:
        if self._turn is not None:
            await self._turn.take()
        await self._hold.__aenter__()
        try:
            found = await self._sandboxes.used(self._row, self._hold, self._op, self._awake)
        except BaseException as error:
            await self.__aexit__(type(error), error, error.__traceback__)
            raise
        self._row = found[0]  # as it is by now: waking it may have made it again
        return found

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        try:
            await self._hold.__aexit__(kind, error, trace)
        except KilledMeanwhile as overtaken:
            error = overtaken
        if isinstance(error, KilledMeanwhile | SandboxDiedError):
            raise await self._sandboxes.explain(error, self._row) from None
