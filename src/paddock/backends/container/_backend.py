"""The backend: plans become containers of the machine's engine; commands and files go straight to the guest in them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Coroutine, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from paddock.backends._base import Backend, Capabilities, Ending, Exits, SandboxPlan, TreeMount
from paddock.errors import (
    AlreadyExists,
    ErrandFailed,
    LevelUnavailable,
    PaddockError,
    PlatformError,
    SandboxDied,
    Unsupported,
)
from paddock.keeper.layout import CONTAINERS, REPOSITORIES
from paddock.linux import proc
from paddock.model import Check, Level, Limit, Noun, SandboxId, Template
from paddock.storage._porter import Porter

from . import _birth, _life, _probe
from ._engine import Engine, missing
from ._engine_state import at_rest, ending_of, how_it_ended, owned, remove
from ._images import Images, shown_of_usr
from ._instance import ContainerInstance
from ._kit_directory import kit_directory
from ._life import Life
from ._options import options
from ._records import BIRTH, Record, Records, maker, name_of
from ._storage import Storage

R = TypeVar("R")
_KILLED = Ending(limit=None, reason="it was killed")
_UNMADE = Ending(limit=None, reason="who made it died before it was complete")
_SILENT = Ending(limit=None, reason="it ended by itself; its engine does not know why")
_REMOVED = "its container was removed by somebody else, with what was new in its workspace"
_OVERDUE_SECONDS = 2.0
_KILL_SECONDS = 60.0


class ContainerBackend:
    """Containers of one state directory, in whichever engine `_probe.find` finds."""

    name = "container"
    level = Level.CONTAINER

    def __init__(self, state_dir: Path) -> None:
        self._state = state_dir
        self._directory = state_dir / CONTAINERS
        self.records = Records(self._directory)
        self._images = Images(self._directory, self._pool)
        self._found: _probe.Found | None = None
        self._engine: Engine | None = None
        self._opening = asyncio.Lock()
        self._lives: dict[tuple[SandboxId, int], Life] = {}
        self._locks: dict[SandboxId, asyncio.Lock] = {}
        self._tasks: set[asyncio.Task[Any]] = set()
        self._stored: Storage | None = None
        self._storing = asyncio.Lock()

    @property
    def capabilities(self) -> Capabilities:
        self.probe()
        held = self._ceilings()
        enforced = {Limit.OPEN_FILES, Limit.OUTPUT, Limit.TIME, Limit.TTL}
        enforced |= {limit for limit in (Limit.MEMORY, Limit.PROCESSES) if limit.value in held}
        return Capabilities(isolation=True, enforced=frozenset(enforced), root_user=True, adopt=True, trees=True)

    def _ceilings(self) -> frozenset[str]:
        return frozenset({"memory", "processes"}) if self._found is None else self._found.info.ceilings

    @property
    def edition(self) -> str:
        """What measured figures depend on."""
        self.probe()
        return "" if self._found is None else f"{self._found.info.name} at {self._found.socket}"

    def probe(self) -> str | None:
        if self._found is not None:
            return None
        found = _probe.find()
        if isinstance(found, str):
            return found
        if found.refusal is None:
            self._found = found
        return found.refusal

    def checks(self) -> tuple[Check, ...]:
        return _probe.checks(self._found or _probe.find())

    # one sandbox

    async def create(self, plan: SandboxPlan) -> ContainerInstance:
        self._require(plan)
        making = self._start(self._make(plan))
        try:
            instance = await asyncio.shield(making)
        except asyncio.CancelledError:
            await asyncio.shield(self._start(self._unmake(making)))
            raise
        with contextlib.suppress(PaddockError, OSError):  # whoever asks next is told
            await instance.connection("user")
        return instance

    def _require(self, plan: SandboxPlan) -> None:
        wanted = {
            "mounts": plan.spec.mounts,
            "nested": plan.spec.nested or plan.parent,
            "exits": plan.exits,
        }
        for feature, asked in wanted.items():
            if asked:
                self.capabilities.require(feature, self.name)
        if plan.spec.snapshot is not None:
            raise Unsupported("a container begins with the files of its template", hint="snapshots: level='jail'")

    async def _make(self, plan: SandboxPlan) -> ContainerInstance:
        engine = await self._open()
        image = await self._images.ensure(engine, plan.template)
        shown = [(Path(path), path) for path in shown_of_usr(plan.template)]
        shown += [(self._state / REPOSITORIES / t.tree, t.target) for t in plan.trees if _is_repository(t)]
        record = Record(
            id=plan.id,
            incarnation=plan.incarnation,
            deadline=plan.deadline,
            template=plan.template,
            boot=proc.boot_id(),
            maker=maker(),
            trees=tuple(tree for tree in plan.trees if tree.writable),
        )
        try:
            place = self.records.make(record)
        except FileExistsError:
            raise AlreadyExists(f"there is a sandbox {plan.id} already") from None
        try:
            with _birth.expecting(place) as birth:
                asked = options(
                    plan,
                    image,
                    kit=self._kit,
                    birth=place / BIRTH,
                    owner=str(self._directory),
                    shown=shown,
                    held=self._ceilings(),
                )
                await self._create(engine, record, asked, plan)
                await engine.post(f"/containers/{record.container}/start")
                told = _birth.orders(plan, self._ceilings())
                pid = await birth.call(told, lambda: how_it_ended(engine, record.container))
            record = msgspec.structs.replace(record, pid=pid, start=proc.start_time(pid))
            self.records.write(record)
            instance = ContainerInstance(self, self._life(record))
            await self._load(plan, record, instance)
            return instance
        except (OSError, PaddockError) as error:
            await self._remove(engine, record.id)
            if isinstance(error, OSError):
                raise PlatformError(f"the container ended while it was made: {error}", hint="try again") from None
            raise

    async def _create(self, engine: Engine, record: Record, asked: Any, plan: SandboxPlan) -> None:
        for last in (False, True):
            try:
                await engine.post("/containers/create", asked, name=record.container)
                return
            except PlatformError as error:
                if last or not missing(error):
                    raise
                # Somebody has removed the image.
                self._images.forget(asked["Image"])
                await self._images.ensure(engine, plan.template)

    async def _load(self, plan: SandboxPlan, record: Record, instance: ContainerInstance) -> None:
        trees = tuple(tree for tree in plan.trees if not _is_repository(tree))
        if trees:
            carrier = (await self._storage()).carrier
            await carrier.into(plan.id, trees, instance, _owner(plan.template))
            self.records.write(msgspec.structs.replace(record, loaded=True))

    async def _unmake(self, making: asyncio.Task[ContainerInstance]) -> None:
        with contextlib.suppress(PaddockError):  # then it has undone all by itself
            await (await making).kill()

    async def adopt(self, id: SandboxId) -> ContainerInstance | None:
        record = self.records.read(id)
        if record is None or not record.lives():
            if record is not None:
                await self.settled(id, record.incarnation)
            return None
        try:
            return ContainerInstance(self, self._life(record))
        except ProcessLookupError:
            return None

    async def exits(self, id: SandboxId, incarnation: int, *, make: bool = False) -> Exits | None:
        raise Unsupported("a container has no way to the gateway", hint="level='jail', 'gvisor' or 'microvm'")

    async def living(self) -> Mapping[SandboxId, Ending | None]:
        found: dict[SandboxId, Ending | None] = {}
        for record in self.records.all():
            if record.is_being_made():
                continue
            if not record.lives() and record.owes:
                found[record.id] = None  # until its work is where everybody looks for it
                self._start(self._settle_quietly(record))
                continue
            found[record.id] = None if record.lives() else await self.ending(record.id, record.incarnation)
            if found[record.id] is None and proc.boottime() > record.deadline + _OVERDUE_SECONDS:
                self._start(self._end_overdue(record))  # its pid 1 stands still, or somebody holds it
        return found

    async def paused(self) -> frozenset[SandboxId]:
        """None: a pid 1 that stands still holds no deadline."""
        return frozenset()

    async def forget(self, id: SandboxId) -> None:
        record = self.records.read(id)
        if record is not None:
            if record.lives() or record.is_being_made() or record.owes:
                return
            await self._remove(await self._open(), id)
        for key in [key for key in self._lives if key[0] == id]:
            self._lives.pop(key).close()
        if (lock := self._locks.get(id)) is not None and not lock.locked():
            del self._locks[id]

    # for its instances

    async def kill(self, id: SandboxId, incarnation: int, life: Life, *, why: Any = "caller") -> None:
        async with self._locks.setdefault(id, asyncio.Lock()):
            record = self.records.read(id)
            if record is None or record.incarnation != incarnation:
                return
            engine = await self._open()
            if record.lives():
                self.records.write(msgspec.structs.replace(record, killed=why))
                if _life.stands_still(record):
                    with contextlib.suppress(PlatformError):
                        await engine.post(f"/containers/{record.container}/unpause")
                if not life.kill():
                    await engine.post(f"/containers/{record.container}/kill", signal="KILL")
                async with asyncio.timeout(_KILL_SECONDS):
                    await asyncio.shield(life.ended)
            await self._take_out(engine, id)
            if why == "caller":
                await self._remove(engine, id)

    async def settled(self, id: SandboxId, incarnation: int) -> None:
        """Returns when what a dead one left in its trees is in the pool. PlatformError: it is kept in the container."""
        async with self._locks.setdefault(id, asyncio.Lock()):
            record = self.records.read(id)
            if record is not None and record.incarnation == incarnation and record.owes and not record.lives():
                await self._take_out(await self._open(), id)

    async def _settle_quietly(self, record: Record) -> None:
        with contextlib.suppress(PaddockError, OSError):  # who looks next tries again
            await self.settled(record.id, record.incarnation)

    async def _take_out(self, engine: Engine, id: SandboxId) -> None:
        """Of a dead one, for whoever has its lock."""
        record = self.records.read(id)
        if record is None or not record.owes:
            return
        if not await at_rest(engine, record.container):
            self.records.write(msgspec.structs.replace(record, carried=True, lost=_REMOVED))
            return
        carrier = (await self._storage()).carrier
        lost = ""
        try:
            await carrier.out(
                id, record.trees, _owner(record.template), lambda path: engine.archive(record.container, path)
            )
        except ErrandFailed as error:
            lost = error.message
        except PlatformError as error:
            if not missing(error):
                raise
            lost = "its workspace had been removed inside"
        self.records.write(msgspec.structs.replace(record, carried=True, lost=lost))

    def move_deadline(self, id: SandboxId, incarnation: int, deadline: float) -> float:
        """Writes it down; what it was. SandboxDied."""
        record = self.records.read(id)
        if record is None or record.incarnation != incarnation or not record.lives():
            raise SandboxDied(f"sandbox {id} is gone")
        self.records.write(msgspec.structs.replace(record, deadline=deadline))
        return record.deadline

    async def ending(self, id: SandboxId, incarnation: int) -> Ending:
        record = self.records.read(id)
        if record is not None and record.incarnation == incarnation and record.lost:
            return Ending(limit=None, reason=f"it ended, and {record.lost}")
        if record is None or record.incarnation != incarnation or record.killed == "caller":
            return _KILLED
        if record.killed == "deadline" or (record.pid and proc.boottime() >= record.deadline):
            return Ending(limit=Limit.TTL, reason="its time was up")
        if not record.pid:
            return _UNMADE
        if record.boot != proc.boot_id():
            return Ending(limit=None, reason="the machine was restarted")
        try:
            return await ending_of(await self._open(), record.container)
        except PaddockError:
            return _SILENT

    async def aclose(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for life in self._lives.values():
            life.close()
        self._lives.clear()
        if self._stored is not None:
            await self._stored.aclose()

    # the engine

    async def _open(self) -> Engine:
        """The engine, once what dead services have left half made in it is gone. LevelUnavailable."""
        async with self._opening:
            if self._engine is None:
                refusal = await asyncio.to_thread(self.probe)
                if self._found is None:
                    raise LevelUnavailable(f"level 'container' is not available: {refusal}", hint="paddock doctor")
                engine = Engine(self._found.socket)
                await self._sweep(engine)
                self._engine = engine
            return self._engine

    async def _sweep(self, engine: Engine) -> None:
        for id in await owned(engine, str(self._directory)):
            if self.records.read(id) is None:
                await self._remove(engine, id)

    async def _remove(self, engine: Engine, id: SandboxId) -> None:
        """All of it, in the engine first: as long as there is a record, the next service tries again."""
        await remove(engine, name_of(id))
        self.records.remove(id)

    async def _end_overdue(self, record: Record) -> None:
        with contextlib.suppress(PaddockError, OSError):
            await self.kill(record.id, record.incarnation, self._life(record), why="deadline")

    def _life(self, record: Record) -> Life:
        """ProcessLookupError: it has ended."""
        key = (record.id, record.incarnation)
        if key not in self._lives:
            self._lives[key] = Life(record)
        return self._lives[key]

    @cached_property
    def _kit(self) -> Path:
        return kit_directory(self._directory)

    async def _pool(self) -> tuple[int, Porter]:
        stored = await self._storage()
        return stored.descriptor, stored.pool.porter

    async def _storage(self) -> Storage:
        async with self._storing:
            if self._stored is None:
                self._stored = await Storage.open(self._state)
            return self._stored

    def _start(self, work: Coroutine[Any, Any, R]) -> asyncio.Task[R]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


def _owner(template: Template) -> tuple[str, int, int]:
    user = template.user(None)
    assert user is not None
    return user.name, user.uid, user.gid


def _is_repository(tree: TreeMount) -> bool:
    return tree.tree.startswith(Noun.REPOSITORY)


_: type[Backend] = ContainerBackend
