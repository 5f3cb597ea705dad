"""The instances that the daemon holds, made by it or adopted from the daemon before it: their pauses and ends.

A row says `paused` once its sandbox stands still, and `running` once it goes on. The backend says what it pauses by
itself, for idleness, and what a daemon had no time to record before it died. Verbs that pause and wake hold the lane.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Mapping

from paddock.backends.base import Backend, BackendState, Ending, Instance, Paused
from paddock.daemon.access.secrets import SecretBindings
from paddock.daemon.context import Component, Context, Operation
from paddock.daemon.store.database import Row, has_ended
from paddock.daemon.store.trees import staged_trees
from paddock.errors import (
    GuestProtocolError,
    InvalidStateError,
    PaddockError,
    ResourceExhaustedError,
    SandboxDiedError,
    logged,
)
from paddock.model import ExecInfo, Limit, SandboxId, State, Usage, died, replace

from . import _copies, _ttl
from .cleanup import Cleanup
from .instance import RunningSandbox
from .nested import Nested

_log = logging.getLogger("paddock")
LIVE = (State.RUNNING, State.PAUSED)
SESSION_ENDED = "the program that made it ended"
_GONE = Ending(limit=None, reason="")
_UNUSED = "it was paused, and nobody resumed it for as long as paused ones are kept"
_CAUSE_SECONDS = 3.0
_NAMED = 5
_NAME_CHARS = 60


class RunningSandboxes(Component):
    def __init__(self, context: Context, cleanup: Cleanup, bindings: SecretBindings, nested: Nested) -> None:
        super().__init__(context)
        self._cleanup, self._bindings, self._nested = cleanup, bindings, nested
        self._sandboxes: dict[SandboxId, RunningSandbox] = {}
        self._adopting: dict[SandboxId, asyncio.Task[RunningSandbox]] = {}
        self._kills: dict[SandboxId, str] = {}  # those under way, with their reasons

    def admit(self, row: Row, backend: Backend, instance: Instance) -> RunningSandbox:
        """Hold a new instance and watch for its end. After the tasks are closed, call `aclose`."""
        running = self._sandboxes[row.id] = RunningSandbox(row, backend, instance)
        if self._tasks.closed:
            return running
        running.watch = self._tasks.start(self._watch(running), name=f"watch {row.id}")
        if row.sandbox.spec.nested:
            running.server = self._tasks.start(self._nested.serve(running), name=f"door {row.id}")
        return running

    def get(self, row: Row) -> RunningSandbox | None:
        running = self._sandboxes.get(row.id)
        return running if running is not None and running.row.instance_id == row.instance_id else None

    async def resume_for_input(self, row: Row) -> None:
        """Resume a paused sandbox because a caller writes to a command or port that was open before the pause."""
        running = self.get(row)
        if running is None or not running.instance.pause_clock.now:
            return
        async with self._lanes.exclusive(row.id):
            running = self.get(row)
            if running is not None and running.instance.pause_clock.now:
                await self._resume_instance(running.row, running)
                self._audit.event("sandbox.woken", sandbox=row.id, message="something was sent to what runs in it")

    def is_still(self, row: Row) -> bool:
        """Tell whether it is paused now. Any thread may call this."""
        running = self.get(row)
        return running is not None and running.instance.pause_clock.now

    async def get_or_adopt(self, row: Row) -> RunningSandbox:
        """Return the running sandbox, adopting it if the daemon before this one made it. Raises SandboxDiedError."""
        running = self.get(row)
        if running is not None:
            return running
        adopting = self._adopting.get(row.id)
        if adopting is None:
            adopting = self._adopting[row.id] = self._tasks.start(
                self._adopt(row), name=f"adopt {row.id}", awaited=True
            )
            adopting.add_done_callback(lambda _: self._adopting.pop(row.id, None))
        return await asyncio.shield(adopting)

    async def check(self, row: Row) -> Row:
        """Return the row, corrected by what the backend says."""
        return (await self.check_all((row,)))[0]

    async def check_all(self, rows: tuple[Row, ...]) -> tuple[Row, ...]:
        """Check rows first, then the backends: a row that says running followed a living sandbox."""
        states: dict[str, BackendState] = {}
        checked: list[Row] = []
        for row in rows:
            if row.hibernated:  # the backend knows nothing of it
                checked.append(await self._check_hibernated(row))
                continue
            backend = self._backends.find(row.sandbox.backend) if row.state in LIVE else None
            if backend is None:
                checked.append(row)
                continue
            if backend.name not in states:
                states[backend.name] = await backend.state()
            state = states[backend.name]
            if state.living.get(row.id, _GONE) is not None:
                checked.append(await self.ended(row, state.living.get(row.id)))
            else:
                checked.append(self._apply_paused(row, state.paused))
        return tuple(checked)

    async def ended(self, row: Row, ending: Ending | None) -> Row:
        """Return the row of a running sandbox that the backend doesn't know as living. A verb may have ended it
        meanwhile."""
        now = self._store.get(row.id) or row
        if row.id in self._kills and (ending is None or ending.limit is None):  # a kill hasn't recorded the end yet
            ending = Ending(limit=None, reason=self._kills[row.id])
        # A rollback or hibernation has killed it for that, and it comes back or is back already.
        if now.state in LIVE and not now.hibernated and now.instance_id == row.instance_id:
            now = await self._cleanup.finalize(now, ending)
        running = self._sandboxes.get(row.id)
        if running is not None and running.row.instance_id <= row.instance_id:
            await self.release(row.id)
        return now

    async def _check_hibernated(self, row: Row) -> Row:
        if not self._cleanup.overdue(row):
            return row
        if row.sandbox.left_seconds is None:  # it ended while it was being woken, or in an old version's time
            return await self._cleanup.finalize(row, Ending(limit=Limit.TTL, reason="its time to live was over"))
        return await self._cleanup.finalize(row, Ending(limit=Limit.RETENTION, reason=_UNUSED))

    async def dead(self, row: Row) -> SandboxDiedError:
        """Return the error that also says when and why, after a backend raised SandboxDiedError."""
        now = self._store.get(row.id) or row
        if not has_ended(now) and now.instance_id != row.instance_id:
            return _away(row)  # the one that was spoken with is gone; what is held by now is the next, in use perhaps
        running = self._sandboxes.get(row.id)
        if running is not None and running.watch is not None:
            # The one who spoke with it hears of the end before the one who knows the cause.
            await asyncio.wait((running.watch,), timeout=_CAUSE_SECONDS)
        checked = await self.check(self._store.get(row.id) or row)
        if not has_ended(checked):
            # The backend still lists it as living: one connection was lost. The next call makes a new one.
            await self.release(row.id)
            return _no_answer(row) if checked.restoring is None else _away(row)
        return died(checked.sandbox)

    async def explained(self, running: RunningSandbox, error: SandboxDiedError | GuestProtocolError) -> PaddockError:
        """Return the error to raise. If a guest doesn't end a command that it should, the sandbox ends, without asking
        anything inside."""
        if isinstance(error, GuestProtocolError) and ("unended" not in error.details or self._tasks.closed):
            return error
        if isinstance(error, SandboxDiedError) or running.dying:
            return await self.dead(running.row)
        running.dying = True
        return died((await self.kill(running.id, error.message)).sandbox)

    async def kill(self, id: SandboxId, reason: str, op: Operation | None = None) -> Row:
        """End a sandbox, unless it has ended. Once begun it continues even if the caller leaves.

        `op`: the action that asks for it. Its outcome is recorded even if the caller has left.
        """
        to_its_end = self._tasks.finish if op is None else self._tasks.complete
        return await to_its_end(self._kill(id, reason, op), name=f"sandbox {id}: kill")

    async def _kill(self, id: SandboxId, reason: str, op: Operation | None) -> Row:
        async with self._lanes.overtake(id):
            row = self._store.existing(id)
            if not has_ended(row):
                self._kills[id] = reason
                try:
                    row = await self._end(row, reason, audited=op is not None)
                finally:
                    self._kills.pop(id, None)
        if op is not None:
            op.done()
        return row

    async def _end(self, row: Row, reason: str, *, audited: bool) -> Row:
        running = self.get(row)
        instance = (
            running.instance if running is not None else await self._backends.named(row.sandbox.backend).adopt(row.id)
        )
        if running is not None:
            running.dying = True
        try:
            if instance is not None:
                with contextlib.suppress(SandboxDiedError):
                    await instance.kill()
        except BaseException:
            await self.release(row.id)  # in any state: the next request finds out
            raise
        was, row = row, await self._cleanup.finalize(row, Ending(limit=None, reason=reason), audited=audited)
        await self.release(row.id)
        if running is None and instance is not None:
            await instance.aclose()
        if was.restoring is not None:
            await _copies.discard(self._pool(), staged_trees(was.id))
        return row

    async def pause(self, row: Row, running: RunningSandbox, *, force: bool = False) -> Row:
        """Pause it. Raises SandboxDiedError, or InvalidStateError if commands run in it and `force` is false."""
        running.backend.capabilities.require("pause", running.backend.name)
        if not force:
            await self.refuse_while_busy(row, running)
        known = await running.instance.pause()
        return self._timed(_ttl.paused(self._record(row, State.PAUSED), self._clock, known))

    async def refuse_while_busy(self, row: Row, running: RunningSandbox) -> None:
        """Raise InvalidStateError with the commands that run in it. Do nothing if it is paused."""
        if running.instance.pause_clock.now:
            return
        name = row.sandbox.spec.name or row.id
        force = f"pause it all the same: paddock pause {name} --force"
        try:
            commands = [one for one in await running.instance.execs() if one.status is None]
        except SandboxDiedError:
            raise
        except PaddockError as error:
            raise InvalidStateError(f"what runs in sandbox {name} can't be told: {error.message}", hint=force) from None
        if commands:
            named = "; ".join(self._named(command) for command in commands[:_NAMED])
            more = f"; and {len(commands) - _NAMED} more" if len(commands) > _NAMED else ""
            runs = "1 command runs" if len(commands) == 1 else f"{len(commands)} commands run"
            raise InvalidStateError(
                f"{runs} in sandbox {name} and would stand still: {named}{more}",
                hint=force,
                sandbox=row.id,
                commands=[one.id for one in commands[:_NAMED]],
            )

    def _named(self, command: ExecInfo) -> str:
        command_line = " ".join(self._bindings.without_values(command.argv))
        text = "".join(one if one.isprintable() else "?" for one in command_line[:_NAME_CHARS])
        return f"{text} ({command.id}{', in the background' if command.background else ''})"

    async def resume(self, row: Row, running: RunningSandbox) -> Row:
        """Resume it. Raises SandboxDiedError, InvalidStateError."""
        running.backend.capabilities.require("pause", running.backend.name)
        return await self._resume_instance(row, running)

    async def wake(self, row: Row, running: RunningSandbox, op: Operation) -> Row:
        """Resume it for an action that uses it, and record that. Raises SandboxDiedError, InvalidStateError."""
        row = await self._resume_instance(row, running)
        self._audit.event("sandbox.woken", sandbox=row.id, message=None, decision=op.number)
        return row

    async def _send_deadline(self, row: Row, instance: Instance) -> None:
        """Tell a running sandbox the recorded deadline, if an `extend` did not come to its end or the disk was full."""
        if row.state is State.RUNNING and not instance.pause_clock.now:
            with logged("set the deadline", row.id):  # the next adoption tries again
                await instance.set_deadline((self._store.get(row.id) or row).deadline)

    def _apply_paused(self, row: Row, known: Mapping[SandboxId, Paused]) -> Row:
        """Return the row, corrected by what the backend says. It holds no lane, so a pause may have come since:
        `running` is returned and not recorded. A change of the row since then wins."""
        if row.state is State.RUNNING and row.id in known:
            if (now := self._store.get(row.id)) is not None and now != row:
                return now
            with contextlib.suppress(InvalidStateError):  # it has ended meanwhile
                row = self._record(row, State.PAUSED)
                self._audit.event("sandbox.slept", sandbox=row.id, message=_why(row))
        elif row.state is State.PAUSED and row.id not in known:
            goes_on = _ttl.running(row, self._clock)
            return replace(goes_on, sandbox=replace(goes_on.sandbox, state=State.RUNNING))
        if row.state is State.PAUSED and row.sandbox.left_seconds is None and (times := known.get(row.id)) is not None:
            row = self._timed(_ttl.paused(row, self._clock, times))
        return row

    async def _resume_instance(self, row: Row, running: RunningSandbox) -> Row:
        deadline = await running.instance.resume()
        row = self._store.get(row.id) or row
        try:
            return self._record(self._timed(_ttl.running(row, self._clock, deadline)), State.RUNNING)
        except ResourceExhaustedError:
            await self._send_deadline(row, running.instance)
            raise

    def _timed(self, row: Row) -> Row:
        return row if self._store.set_deadline(row) else self._store.get(row.id) or row

    def _record(self, row: Row, state: State) -> Row:
        """Return the new row. Raises InvalidStateError if it has ended, or is being restored."""
        now = self._store.get(row.id) or row
        return now if now.state is state and not now.hibernated else self._store.move(row, state)

    async def usage(self, running: RunningSandbox) -> Usage:
        """Return its usage, with that of its tree where the backend leaves that to the pool."""
        usage = await running.instance.usage()
        if usage.disk_bytes is not None:
            return usage
        disk = await asyncio.to_thread(self._pool().usage, running.id)
        return replace(usage, disk_bytes=None if disk is None else disk.used_bytes)

    async def settled_disk(self, running: RunningSandbox) -> Usage:
        """Return the current usage without deleted files, which the kernel subtracts some seconds later by itself."""
        await asyncio.to_thread(self._pool().settle)
        return await self.usage(running)

    async def release(self, id: SandboxId) -> None:
        """Lets go of an instance, which lives on if it does."""
        running = self._sandboxes.pop(id, None)
        if running is None:
            return
        if running.watch is not None and running.watch is not asyncio.current_task():
            running.watch.cancel()
        if running.server is not None:
            running.server.cancel()
        with logged("let go of the instance", id):
            await running.instance.aclose()

    async def aclose(self) -> None:
        """End what no daemon could adopt; the rest lives on."""
        failed = await asyncio.gather(
            *(self._leave(running) for running in tuple(self._sandboxes.values())), return_exceptions=True
        )
        for error in failed:  # each has been tried by now
            if isinstance(error, BaseException):
                raise error

    async def _leave(self, running: RunningSandbox) -> None:
        try:
            row = self._store.get(running.id)
            if not running.backend.capabilities.adopt and row is not None and not has_ended(row):
                running.dying = True
                with contextlib.suppress(SandboxDiedError):
                    await running.instance.kill()
                await self._cleanup.finalize(row, Ending(limit=None, reason=SESSION_ENDED))
        finally:
            await self.release(running.id)

    async def _adopt(self, row: Row) -> RunningSandbox:
        await self.release(row.id)  # one that was taken back to a snapshot since
        backend = self._backends.named(row.sandbox.backend)
        instance = await backend.adopt(row.id)
        if instance is None:
            ending = (await backend.state()).living.get(row.id, _GONE)
            if ending is None:  # it lives, and could not be looked at
                raise _no_answer(row)
            now = await self.ended(row, None if ending is _GONE else ending)
            raise died(now.sandbox) if has_ended(now) else _no_answer(row)
        if backend.capabilities.pause:
            await self._send_deadline(row, instance)
        return self.admit(row, backend, instance)

    async def _watch(self, running: RunningSandbox) -> None:
        try:
            ending = await running.instance.wait_ended()
        except (PaddockError, OSError):
            # A lost connection says nothing about the sandbox. The next request finds out.
            if self._sandboxes.get(running.id) is running:
                await self.release(running.id)
            return
        if running.dying:
            return
        if self._store.get(running.id) is not None:
            await self.ended(running.row, ending)


async def end(instance: Instance) -> None:
    """Kill an instance and close it. It may have ended by itself."""
    try:
        with contextlib.suppress(SandboxDiedError):
            await instance.kill()
    finally:
        await instance.aclose()


async def destroy(backend: Backend, id: SandboxId) -> None:
    """End what lives of a sandbox at the backend, and delete the backend's record of it."""
    if (instance := await backend.adopt(id)) is not None:
        await end(instance)
    await backend.forget(id)


def _no_answer(row: Row) -> SandboxDiedError:
    return SandboxDiedError(f"sandbox {row.id} does not answer", hint="try again", sandbox=row.id)


def _away(row: Row) -> SandboxDiedError:
    return SandboxDiedError(
        f"sandbox {row.id} was put to sleep on disk, or taken back to a snapshot, while this was under way",
        hint="the next use wakes it; `paddock ps` shows the commands that go on in it",
        sandbox=row.id,
    )


def _why(row: Row) -> str:
    idle = row.sandbox.spec.idle_seconds
    return "it was found paused" if idle is None else f"nobody had used it for {idle:g} s"
