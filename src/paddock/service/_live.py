"""The instances that this service holds: made here, or adopted from services before it."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Callable, Coroutine, Generator, Mapping

import msgspec

from paddock.backends._base import Backend, Ending, Instance
from paddock.errors import GuestProtocolError, PaddockError, SandboxDied, Unsupported
from paddock.model import Limit, SandboxId, State, Usage
from paddock.storage._base import Pool

from ._clock import holder_alive
from ._held import Held as Held
from ._providers import Backends
from ._remains import Remains, died, has_ended
from ._sleeping import Sleeping
from ._store import Row, Store
from ._tasks import Tasks


class Live:
    def __init__(
        self,
        *,
        holder: str,
        store: Store,
        backends: Backends,
        remains: Remains,
        pool: Callable[[], Pool],
        tasks: Tasks,
        serve: Callable[[Held], Coroutine[None, None, None]],
        sleeping: Sleeping,
    ) -> None:
        self.sleeping = sleeping
        self.holder, self._serve = holder, serve
        self._store, self._backends, self._remains = store, backends, remains
        self._pool, self._tasks = pool, tasks
        self._held: dict[SandboxId, Held] = {}
        self._making: Counter[SandboxId] = Counter()
        self._adopting: dict[SandboxId, asyncio.Task[Held]] = {}
        self._has_made = False
        """One that is to end with this program."""
        self.ends_own = True
        """Closing ends what was made here and is not persistent."""

    def admit(self, row: Row, backend: Backend, instance: Instance) -> Held:
        """Once the tasks are closed nobody watches it: `aclose` has to follow."""
        held = self._held[row.id] = Held(row, backend, instance)
        self._has_made |= row.holder == self.holder and not row.sandbox.spec.persistent
        if self._tasks.closed:
            return held
        held.watch = self._tasks.start(self._watch(held), name=f"watch {row.id}")
        if row.sandbox.spec.nested and row.holder == self.holder:
            held.door = self._tasks.start(self._serve(held), name=f"door {row.id}")
        return held

    def get(self, row: Row) -> Held | None:
        held = self._held.get(row.id)
        return held if held is not None and held.row.incarnation == row.incarnation else None

    async def rouse(self, row: Row) -> None:
        """For somebody who uses what he has had open since before it was paused. SandboxDied."""
        held = self.get(row)
        if held is not None and held.instance.stillness.now:
            await self.sleeping.rouse(held)

    async def hold(self, row: Row) -> Held:
        """The instance of a running sandbox. SandboxDied if there is none any more."""
        held = self.get(row)
        if held is not None:
            return held
        await self.release(row.id)  # one that another service has taken back to a snapshot
        adopting = self._adopting.get(row.id)
        if adopting is None:
            adopting = self._adopting[row.id] = self._tasks.start(
                self._adopt(row), name=f"adopt {row.id}", awaited=True
            )
            adopting.add_done_callback(lambda _: self._adopting.pop(row.id, None))
        return await asyncio.shield(adopting)

    def elsewhere(self, row: Row, backend: Backend) -> bool:
        """It lives in another service's own process, where nobody else can reach it or tell how it is."""
        return not backend.capabilities.adopt and row.holder != self.holder and holder_alive(row.holder)

    async def check(self, row: Row, *, paused: bool = False) -> Row:
        """What is recorded, corrected by what the backend says; with `paused`, even where it is not to be expected that
        it stands still."""
        return (await self.check_all((row,), paused=paused))[0]

    async def check_all(self, rows: tuple[Row, ...], *, paused: bool = True) -> tuple[Row, ...]:
        said: dict[str, Mapping[SandboxId, Ending | None]] = {}
        still: dict[str, frozenset[SandboxId]] = {}
        checked: list[Row] = []
        for row in rows:
            if row.state is State.CREATING and not self.is_being_made(row):
                row = self._store.get(row.id) or row  # its maker may have come to an end since it was read
                if row.state is State.CREATING:
                    checked.append(await self._unmake(row))
                    continue
                said.clear()  # what was said before it was there knows nothing of it
                still.clear()
            if row.asleep:  # the backend knows nothing of it
                checked.append(await self._asleep(row))
                continue
            backend = self._backends.find(row.sandbox.backend) if row.state in LIVE else None
            if backend is None or self.elsewhere(row, backend):
                checked.append(row)
                continue
            if backend.name not in said:
                said[backend.name] = await backend.living()
            living = said[backend.name]
            if living.get(row.id, _GONE) is not None:
                checked.append(await self.ended(row, living.get(row.id)))
                continue
            if paused or row.state is State.PAUSED or row.sandbox.spec.idle_seconds is not None:
                if backend.name not in still:
                    still[backend.name] = await backend.paused()
                row = self.sleeping.seen(row, still[backend.name])
            checked.append(row)
        return tuple(checked)

    async def ended(self, row: Row, ending: Ending | None) -> Row:
        """A running sandbox that the backend does not hold as living. Somebody may have ended it properly meanwhile."""
        now = self._store.get(row.id) or row
        # What is being taken back to a snapshot, or to disk, has been killed for that, and will be back or is already.
        if now.state in LIVE and not now.asleep and now.incarnation == row.incarnation:
            now = await self._remains.settle(now, ending)
        held = self._held.get(row.id)
        if held is not None and held.row.incarnation <= row.incarnation:
            await self.release(row.id)
        return now

    async def _asleep(self, row: Row) -> Row:
        if not self._remains.overdue(row):
            return row
        return await self._remains.settle(row, Ending(limit=Limit.TTL, reason="its time to live was over"))

    @contextlib.contextmanager
    def making(self, id: SandboxId) -> Generator[None]:
        """While it lasts, a row that says `creating` is telling the truth."""
        self._making[id] += 1
        try:
            yield
        finally:  # not the end of another one, who has begun by now
            self._making[id] -= 1
            if not self._making[id]:
                del self._making[id]

    def is_being_made(self, row: Row) -> bool:
        return row.id in self._making if row.holder == self.holder else holder_alive(row.holder)

    async def _unmake(self, row: Row) -> Row:
        """What a service was making when it died. It may have come as far as an instance."""
        backend = self._backends.find(row.sandbox.backend)
        instance = None if backend is None else await backend.adopt(row.id)
        if instance is not None:
            try:
                await instance.kill()
            finally:
                await instance.aclose()
        return await self._remains.settle(row, None)

    async def confirm_dead(self, row: Row) -> None:
        """Returns when the backend, too, holds nothing of what is recorded as ended."""
        backend = self._backends.named(row.sandbox.backend)
        instance = await backend.adopt(row.id)
        if instance is not None:
            try:
                with contextlib.suppress(SandboxDied):
                    await instance.kill()
            finally:
                await instance.aclose()
            await backend.forget(row.id)

    async def dead(self, row: Row) -> SandboxDied:
        """After a backend said SandboxDied: the error that also says when and why."""
        now = self._store.get(row.id) or row
        if not has_ended(now) and now.incarnation != row.incarnation:
            return _away(row)  # the one that was spoken with is gone; what is held by now is the next, in use perhaps
        held = self._held.get(row.id)
        if held is not None and held.watch is not None:
            # The one who spoke with it hears of the end before the one who knows the cause.
            await asyncio.wait((held.watch,), timeout=_CAUSE_SECONDS)
        checked = await self.check(self._store.get(row.id) or row)
        if not has_ended(checked):
            # It still answers `living`: one connection was lost, not the sandbox. The next call makes a new one.
            await self.release(row.id)
            return _silent(row) if checked.restoring is None else _away(row)
        return died(checked.sandbox)

    async def disobeyed(self, held: Held, error: GuestProtocolError) -> PaddockError:
        """The error to raise. A command that a guest does not end when it is told ends with the sandbox, for which
        nobody inside is asked."""
        if "unended" not in error.details or self._tasks.closed:
            return error
        if held.dying:
            return await self.dead(held.row)
        held.dying = True
        return await self._tasks.finish(self._put_down(held, error.message), name=f"undo sandbox {held.id}: disobeyed")

    async def _put_down(self, held: Held, reason: str) -> SandboxDied:
        with contextlib.suppress(SandboxDied):
            await held.instance.kill()
        row = await self._remains.settle(self._store.get(held.id) or held.row, Ending(limit=None, reason=reason))
        await self.release(held.id)
        return died(row.sandbox)

    def with_disk(self, held: Held, usage: Usage) -> Usage:
        """What its tree uses, where the backend leaves that to the pool."""
        if usage.disk_bytes is not None:
            return usage
        return msgspec.structs.replace(usage, disk_bytes=self._pool().usage(held.id).used_bytes)

    async def settled_disk(self, held: Held) -> Usage:
        """The same of now, with what was deleted given back: the kernel counts that some seconds later by itself."""
        await asyncio.to_thread(self._pool().settle)
        return self.with_disk(held, await held.instance.usage())

    async def release(self, id: SandboxId) -> None:
        """Lets go of an instance, which lives on if it does."""
        held = self._held.pop(id, None)
        if held is None:
            return
        if held.watch is not None and held.watch is not asyncio.current_task():
            held.watch.cancel()
        if held.door is not None:
            held.door.cancel()
        with contextlib.suppress(PaddockError, OSError):
            await held.instance.aclose()

    async def aclose(self) -> None:
        """What was made here and is not persistent ends, as does what nobody could adopt; the rest lives on."""
        failed = await asyncio.gather(
            *(self._leave(held) for held in tuple(self._held.values())), return_exceptions=True
        )
        unheld = [row for row in self._store.list() if self._ends_here(row)] if self._has_made and self.ends_own else ()
        failed += await asyncio.gather(*map(self._end_unheld, unheld), return_exceptions=True)
        for error in failed:  # each has been tried by now
            if isinstance(error, BaseException):
                raise error

    def _ends_here(self, row: Row) -> bool:
        return row.state in LIVE and row.holder == self.holder and not row.sandbox.spec.persistent

    async def end(self, id: SandboxId) -> None:
        """End one whose program has ended, unless it has ended by itself."""
        row = self._store.get(id)
        if row is None or row.state not in LIVE:
            return
        held = self.get(row)
        if held is None:
            await self._end_unheld(row)
            return
        held.dying = True
        try:
            with contextlib.suppress(SandboxDied):
                await held.instance.kill()
            await self._remains.settle(row, _PROGRAM_ENDED)
        finally:
            await self.release(id)

    async def _end_unheld(self, row: Row) -> None:
        """It sleeps on disk, or another service has made it again since: it was made here, and ends here."""
        if row.asleep:
            await self._remains.settle(row, _PROGRAM_ENDED)
            return
        instance = await self._backends.named(row.sandbox.backend).adopt(row.id)
        if instance is None:
            return  # it has ended by itself: the next one who looks records of what
        try:
            with contextlib.suppress(SandboxDied):
                await instance.kill()
            await self._remains.settle(row, _PROGRAM_ENDED)
        finally:
            await instance.aclose()

    async def _leave(self, held: Held) -> None:
        row = self._store.get(held.id)
        mine = self.ends_own and row is not None and row.holder == self.holder and not row.sandbox.spec.persistent
        try:
            same = row is not None and row.incarnation == held.row.incarnation
            if row is not None and same and not has_ended(row) and (mine or not held.backend.capabilities.adopt):
                held.dying = True
                with contextlib.suppress(SandboxDied):
                    await held.instance.kill()
                await self._remains.settle(row, _PROGRAM_ENDED)
        finally:
            await self.release(held.id)

    async def _adopt(self, row: Row) -> Held:
        backend = self._backends.named(row.sandbox.backend)
        if self.elsewhere(row, backend):
            raise Unsupported(
                f"sandbox {row.id} belongs to another program, and a {backend.name!r} sandbox cannot be shared",
                hint="use a level that can: paddock doctor",
            )
        instance = await backend.adopt(row.id)
        if instance is None:
            ending = (await backend.living()).get(row.id, _GONE)
            if ending is None:  # it lives, and could not be looked at
                raise _silent(row)
            now = await self.ended(row, None if ending is _GONE else ending)
            raise died(now.sandbox) if has_ended(now) else _silent(row)
        return self.admit(row, backend, instance)

    async def _watch(self, held: Held) -> None:
        try:
            ending = await held.instance.wait_ended()
        except (PaddockError, OSError):
            # The connection is lost, which says nothing about the sandbox. Whoever asks next will find out.
            await self.release(held.id)
            return
        if held.dying:
            return
        if self._store.get(held.id) is not None:
            await self.ended(held.row, ending)


def _silent(row: Row) -> SandboxDied:
    return SandboxDied(f"sandbox {row.id} does not answer", hint="try again", sandbox=row.id)


def _away(row: Row) -> SandboxDied:
    return SandboxDied(
        f"sandbox {row.id} was put to sleep on disk, or taken back to a snapshot, while this was under way",
        hint="the next use wakes it; `paddock ps` shows the commands that go on in it",
        sandbox=row.id,
    )


LIVE = (State.RUNNING, State.PAUSED)
_GONE = Ending(limit=None, reason="")
_PROGRAM_ENDED = Ending(limit=None, reason="the program that made it ended")
_CAUSE_SECONDS = 3.0
