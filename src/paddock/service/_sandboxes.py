"""Sandboxes: find, use, list, extend, pause, kill."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from types import TracebackType
from typing import TypeVar
from weakref import WeakValueDictionary

from paddock import model
from paddock.errors import InvalidArgumentError, InvalidStateError, NotFoundError, PaddockError, SandboxDiedError
from paddock.model import Inspection, Recording, Sandbox, SandboxId, Snapshot, State, Usage, nested_principal

from . import _validate
from ._context import Component, Context, Entry, handles
from ._disk_sleep import Restoring
from ._doors import Doors
from ._lane import Hold, Overtaken
from ._live import LIVE, SESSION_ENDED, Held, Live
from ._policies import Policies
from ._remains import died
from ._snapshots import Snapshots
from ._store import LEAST_PREFIX, Row, WorkspaceStore, has_ended, the_one
from ._ttl import running

T = TypeVar("T")
_TURN_SECONDS = 0.02
"""A command that runs for longer, or is not started by then, lets the next one of its sandbox begin."""
_CROWD_SECONDS = 1.0
"""For so long after commands in two sandboxes, those of one sandbox take turns."""


class Sandboxes(Component):
    def __init__(
        self,
        context: Context,
        live: Live,
        snapshots: Snapshots,
        policies: Policies,
        restoring: Restoring,
        doors: Doors,
    ) -> None:
        super().__init__(context)
        self._live, self._snapshots = live, snapshots
        self._policies, self._restoring, self._doors = policies, restoring, doors
        self._spaces = WorkspaceStore(self._store)
        self._turns: WeakValueDictionary[SandboxId, asyncio.Lock] = WeakValueDictionary()
        self._latest: SandboxId | None = None
        self._changed = -_CROWD_SECONDS

    @handles(model.GetSandbox)
    async def get(self, action: model.GetSandbox, entry: Entry) -> Sandbox:
        return (await self._live.check(self.find(action.sandbox, entry))).sandbox

    @handles(model.ListSandboxes)
    async def list(self, action: model.ListSandboxes, entry: Entry) -> tuple[Sandbox, ...]:
        rows = await self._live.check_all(self._store.list(entry.principal.id, ended=action.ended))
        return tuple(row.sandbox for row in rows if action.ended or not has_ended(row))

    @handles(model.ExtendSandbox)
    async def extend(self, action: model.ExtendSandbox, entry: Entry) -> Sandbox:
        _validate.check_ttl(action.ttl_seconds)
        row, held = await self.reach(action.sandbox, entry)
        if row.state is State.PAUSED or held.instance.stillness.now:  # its pid 1, which keeps the time too, has to hear
            async with self.use(row.id, entry):
                pass

        async def turn() -> Sandbox:
            deadline = self._clock.boottime() + action.ttl_seconds
            before = self._now(row.id)
            # The row first: if the daemon dies now, or the supervisor, the next adoption tells the sandbox.
            self._set_deadline(before, deadline)
            try:
                await held.instance.set_deadline(deadline)
            except BaseException:
                self._store.set_deadline(before)
                await self._live.release(row.id)
                raise
            return self._set_deadline(self._now(row.id), deadline).sandbox

        return await self._turned(turn(), row)

    def _set_deadline(self, row: Row, deadline: float) -> Row:
        now = row if row.deadline == deadline else running(row, self._clock, deadline)
        if now is not row and not self._store.set_deadline(now):
            raise died(self._now(row.id).sandbox)
        return now

    @handles(model.KillSandbox)
    async def kill(self, action: model.KillSandbox, entry: Entry) -> Sandbox:
        row = self.find(action.sandbox, entry)
        return (await self._live.kill(row.id, f"killed by {entry.principal.id}", told=True)).sandbox

    async def end(self, id: SandboxId) -> None:
        """End one whose program has ended, unless it has ended by itself."""
        if self._store.get(id) is not None:
            await self._live.kill(id, SESSION_ENDED)

    @handles(model.PauseSandbox)
    async def pause(self, action: model.PauseSandbox, entry: Entry) -> Sandbox:
        row = self.find(action.sandbox, entry)

        async def turn() -> Sandbox:
            async with self._lanes.exclusive(row.id):
                now = await self._restoring.settled(self._now(row.id))
                if now.asleep and (now := await self._live.check(now)).asleep:
                    return now.sandbox
                now, held = await self._held(now)
                paused = self._restoring.sleep if action.to_disk else self._live.pause
                return (await paused(now, held, force=action.force)).sandbox

        return await self._turned(turn(), row)

    @handles(model.ResumeSandbox)
    async def resume(self, action: model.ResumeSandbox, entry: Entry) -> Sandbox:
        row = self.find(action.sandbox, entry)

        async def turn() -> Sandbox:
            async with self.alone(row.id, entry) as (now, held):
                return (await self._live.resume(now, held)).sandbox

        return await self._turned(turn(), row)

    @handles(model.RollbackSandbox)
    async def rollback(self, action: model.RollbackSandbox, entry: Entry) -> Sandbox:
        row = self.find(action.sandbox, entry)

        async def turn() -> Sandbox:
            async with self.alone(row.id, entry) as (now, held):
                return await self._restoring.rollback(action, now, held, entry)

        return await self._turned(turn(), row)

    async def _turned(self, work: Coroutine[None, None, Sandbox], row: Row) -> Sandbox:
        """Once begun it goes on, whatever becomes of the caller."""
        async with self.told(row):
            return await self._tasks.finish(work, name=f"sandbox {row.id}: pause, resume, rollback or extend")

    @handles(model.GetUsage)
    async def usage(self, action: model.GetUsage, entry: Entry) -> Usage:
        if (asleep := self.find(action.sandbox, entry)).asleep:
            disk = await asyncio.to_thread(self._pool().usage, asleep.id)
            return Usage(memory_bytes=0, processes=0, disk_bytes=disk.used_bytes)
        row, held = await self.reach(action.sandbox, entry)
        async with self.told(row):
            return await self._live.with_disk(held, await held.instance.usage())

    @handles(model.ListProcesses)
    async def processes(self, action: model.ListProcesses, entry: Entry) -> tuple[model.Process, ...]:
        if self.find(action.sandbox, entry).asleep:
            return ()
        row, held = await self.reach(action.sandbox, entry)
        async with self.told(row):
            return await held.instance.processes()

    @handles(model.InspectSandbox)
    async def inspect(self, action: model.InspectSandbox, entry: Entry) -> Inspection:
        row = await self._live.check(self.find(action.sandbox, entry))
        if row.state not in LIVE or row.asleep:
            return Inspection(sandbox=row.sandbox)
        try:
            held = await self._live.hold(row)
            usage = await self._live.with_disk(held, await held.instance.usage())
            posture = await held.instance.posture()
        except SandboxDiedError:
            return Inspection(sandbox=(await self._live.check(self._store.get(row.id) or row)).sandbox)
        enforced = tuple(sorted(held.backend.capabilities.enforced))
        return Inspection(sandbox=row.sandbox, usage=usage, enforced=enforced, posture=posture)

    @handles(model.CreateSnapshot)
    async def snapshot(self, action: model.CreateSnapshot, entry: Entry) -> Snapshot:
        async with self.alone(action.sandbox, entry) as (row, held):
            return await self._snapshots.create(action, row, held, entry)

    @handles(model.ListSnapshots)
    async def snapshots(self, action: model.ListSnapshots, entry: Entry) -> tuple[Snapshot, ...]:
        source = None if action.sandbox is None else self.find(action.sandbox, entry).id
        return self._snapshots.list(source, entry)

    @handles(model.SetPolicy)
    async def set_policy(self, action: model.SetPolicy, entry: Entry) -> Sandbox:
        async with self.use(action.sandbox, entry, awake=False) as (row, _):
            return await self._policies.set(action, row, entry)

    @handles(model.GetPolicy)
    async def policy(self, action: model.GetPolicy, entry: Entry) -> model.PolicyRevision:
        return await self._policies.get(self.find(action.sandbox, entry))

    @handles(model.StartRecording)
    async def start_recording(self, action: model.StartRecording, entry: Entry) -> None:
        await self._order(Doors.start_recording, action.sandbox, entry)

    @handles(model.TakeRecording)
    async def take_recording(self, action: model.TakeRecording, entry: Entry) -> Recording:
        taken = await self._order(Doors.take_recording, action.sandbox, entry)
        entry.done({"exchanges": len(taken.exchanges), "omitted": len(taken.omitted)})
        return taken

    async def _order(self, order: Callable[[Doors, Row], Awaitable[T]], sandbox: str, entry: Entry) -> T:
        row, _ = await self.reach(sandbox, entry)
        if row.sandbox.policy is None:
            raise InvalidStateError(f"{row.id} has no network: there is nothing to record", hint="paddock policy set")
        try:
            return await order(self._doors, row)
        except NotFoundError:  # the gateway that had it has died, and nobody has opened it again yet
            await self._policies.resume(row)
            return await order(self._doors, row)

    @handles(model.ListTemplates)
    async def templates(self, action: model.ListTemplates, entry: Entry) -> tuple[str, ...]:
        return tuple(sorted(self._templates().names()))

    def find(self, reference: str, entry: Entry) -> Row:
        """By id, name of a living one, unique prefix of an id, or name of the last ended one; only one's own."""
        row = self._find(reference, entry.principal.id)
        entry.sandbox = row.id
        return row

    def _find(self, reference: str, owner: str) -> Row:
        row = self._store.get(reference)
        if row is not None and self._may_name(owner, row):
            return row
        row = self._store.by_name(owner, reference, living=True)
        if row is not None:
            return row
        if reference.startswith(model.Noun.SANDBOX):
            if len(reference) < LEAST_PREFIX:
                raise InvalidArgumentError(
                    f"{reference!r} is too short: a prefix has {LEAST_PREFIX} characters or more"
                )
            if found := self._store.by_prefix(owner, reference):
                return the_one(found, "sandbox", reference, hint="")
        row = self._store.by_name(owner, reference, living=False)
        if row is not None:
            return row
        task = self._spaces.named(owner, reference)
        hint = f"its workspace is there: paddock up --task {reference}" if task else "`paddock ls --all` lists them"
        raise NotFoundError(f"no sandbox {reference!r}", hint=hint, sandbox=reference)

    def _may_name(self, owner: str, row: Row) -> bool:
        """His own, what programs inside his own have made, and, for a program inside one, that one."""
        if owner == row.sandbox.owner or owner == nested_principal(row.id).id:
            return True
        outer = model.Principal(row.sandbox.owner).sandbox
        around = None if outer is None else self._store.get(outer)
        return around is not None and around.sandbox.owner == owner

    def use(self, reference: str, entry: Entry, *, awake: bool = True, turn: Turn | None = None) -> Use:
        """Share the lane of a sandbox that runs, and is woken for that (unless not `awake`): nothing pauses it or makes
        it again in the block, which is to end once what was begun is in the guest's table. SandboxDiedError says when
        and why it does not run any more. With a `turn`, the block is entered when that has come."""
        row = self.find(reference, entry)
        if turn is not None and self._crowded(row.id):
            turn.line = self._turns.setdefault(row.id, asyncio.Lock())
        return Use(self, row, self._lanes.shared(row.id), entry, awake, turn)

    def _crowded(self, id: SandboxId) -> bool:
        """Whether commands of two sandboxes began not long ago, the one that begins now among them."""
        now = asyncio.get_running_loop().time()
        if id != self._latest:
            self._changed, self._latest = -_CROWD_SECONDS if self._latest is None else now, id
        return now < self._changed + _CROWD_SECONDS

    async def used(self, row: Row, hold: Hold, entry: Entry, awake: bool) -> tuple[Row, Held]:
        """The sandbox as it runs, while `hold` shares its lane."""
        row = self._now(row.id)
        if row.restoring is not None or row.state is State.CREATING:
            await hold.exclude()
            row, held = await self._held(await self._there(self._now(row.id), entry))
            hold.share()
        else:
            row, held = await self._held(row)
        if awake:
            row = await self._awake(row, held, hold, entry)
        return row, held

    async def _awake(self, row: Row, held: Held, hold: Hold, entry: Entry) -> Row:
        """Of many that use it at once, one wakes it. If it falls asleep by itself, it stays awake until the outcome of
        the use is known."""
        if row.state is State.PAUSED or held.instance.stillness.now:
            await hold.exclude()
            row, held = await self._held(await self._there(self._now(row.id), entry))
            if row.state is State.PAUSED or held.instance.stillness.now:
                row = await self._live.wake(row, held, entry)
            hold.share()
        if row.sandbox.spec.idle_seconds is not None:
            entry.at_the_end(await held.instance.stay_awake())
        return row

    @asynccontextmanager
    async def alone(self, reference: str, entry: Entry) -> AsyncGenerator[tuple[Row, Held]]:
        """Hold the lane of a sandbox alone. One that is paused stays so; one that sleeps on disk is woken."""
        row = self.find(reference, entry)
        async with self.told(row), self._lanes.exclusive(row.id):
            yield await self._held(await self._there(self._now(row.id), entry))

    async def reach(self, reference: str, entry: Entry) -> tuple[Row, Held]:
        """The same for those who look, and hold no lane."""
        row = self.find(reference, entry)
        if row.restoring is not None or row.state is State.CREATING:
            async with self.alone(row.id, entry) as found:
                return found
        return await self._held(row)

    async def _there(self, row: Row, entry: Entry) -> Row:
        """The lane is ours alone: what is broken off is finished, and what sleeps on disk is woken."""
        return row if row.restoring is None else await self._restoring.awake(row, entry)

    async def _held(self, row: Row) -> tuple[Row, Held]:
        if has_ended(row):
            raise died(row.sandbox)
        if row.state not in LIVE:
            raise InvalidStateError(
                f"sandbox {row.id} is {row.state.value}", hint="wait until it runs", state=row.state.value
            )
        return row, await self._live.hold(row)

    def _now(self, id: SandboxId) -> Row:
        row = self._store.get(id)
        if row is None:
            raise NotFoundError(f"no sandbox {id!r}", sandbox=id)
        return row

    @asynccontextmanager
    async def told(self, row: Row) -> AsyncGenerator[None]:
        """Where the block ends with the sandbox, the error says when and why that was; where a kill has cancelled the
        block, once the kill is over."""
        try:
            yield
        except (Overtaken, SandboxDiedError) as error:
            raise await self.explained(error, row) from None

    async def explained(self, error: Overtaken | SandboxDiedError, row: Row) -> PaddockError:
        if isinstance(error, Overtaken):
            return await self._killed_by(error)
        return error if error.details.get("sandbox") not in (None, row.id) else await self._live.dead(row)

    async def _killed_by(self, overtaken: Overtaken) -> PaddockError:
        async with self._lanes.shared(overtaken.id):
            row = self._now(SandboxId(overtaken.id))
        if has_ended(row):
            return died(row.sandbox)
        return InvalidStateError(f"{overtaken}, and that failed", hint="try again", sandbox=row.id)


class Turn:
    """While several sandboxes are in use, the commands of one take turns, in the order in which they asked: one that
    floods keeps others waiting for one command, not for all. Nobody holds anything while he waits for his turn; it
    lasts until `give`, or `_TURN_SECONDS`."""

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
        self, sandboxes: Sandboxes, row: Row, hold: Hold, entry: Entry, awake: bool, turn: Turn | None
    ) -> None:
        self._sandboxes, self._row, self._hold, self._entry, self._awake = sandboxes, row, hold, entry, awake
        self._turn = turn

    async def __aenter__(self) -> tuple[Row, Held]:
        if self._turn is not None:
            await self._turn.take()
        await self._hold.__aenter__()
        try:
            found = await self._sandboxes.used(self._row, self._hold, self._entry, self._awake)
        except BaseException as error:
            await self.__aexit__(type(error), error, error.__traceback__)
            raise
        self._row = found[0]  # as it is by now: waking it may have made it again
        return found

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await self._hold.__aexit__(kind, error, trace)
        except Overtaken as overtaken:
            error = overtaken
        if isinstance(error, Overtaken | SandboxDiedError):
            raise await self._sandboxes.explained(error, self._row) from None
