"""The backend: it runs plans as containers of the machine's engine.

Commands and files go directly to the guest in them.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from paddock.backends._environment import certificates, of_commands
from paddock.backends.base import (
    Backend,
    BackendState,
    Capabilities,
    Ending,
    Exits,
    KeptExec,
    Paused,
    SandboxPlan,
    TreeMount,
)
from paddock.backends.jail import DescriptorStore, SupervisorClient
from paddock.backends.threads import TaskSet
from paddock.errors import (
    AlreadyExistsError,
    LevelUnavailableError,
    PaddockError,
    PlatformError,
    SandboxDiedError,
    SupervisorUnavailableError,
    logged,
)
from paddock.linux import proc
from paddock.linux.sizes import Processors
from paddock.model import Check, ExecId, IdPrefix, Level, Limit, SandboxId
from paddock.supervisor.layout import CONTAINERS, REPOSITORIES
from paddock.supervisor.namespace_entry import TOLD

from . import _probe, _running, _start
from ._cleanup import Cleanup
from ._egress import TRUSTED, EgressSockets, NamespaceEntry, show_trust
from ._engine import Engine, create, how_it_ended, owned, remove
from ._images import Images, shown_of_usr
from ._instance import HOLD_SECONDS, ContainerInstance
from ._options import engines_own, guest_directory, lying_over, options, told
from ._records import BIRTH, Record, Records, name_of
from ._running import RunningContainer
from ._transfer import TreeTransfer, owner, require_apart

_OVERDUE_SECONDS = 2.0
_KILL_SECONDS = 60.0
_AT_ONCE = max(2, os.cpu_count() or 1)
"""Number of concurrent starts.

Each starts five programs, and a hundred at once would delay each other beyond every deadline. More wouldn't be faster,
because they compute.
"""


class ContainerBackend:
    """Containers of one state directory, in whichever engine `_probe.find` finds."""

    name = "container"
    level = Level.CONTAINER
    spares = None

    def __init__(self, state_dir: Path, *, supervisor: SupervisorClient | None = None) -> None:
        self._state = state_dir
        self._directory = state_dir / CONTAINERS
        self.records = Records(self._directory)
        self._locks: dict[SandboxId, asyncio.Lock] = {}
        self._being_made: set[SandboxId] = set()
        self.transfer = TreeTransfer(state_dir, supervisor)
        self.cleanup = Cleanup(self.records, self._open, self.transfer, self._locks)
        self._images = Images(self._directory, self.transfer.pool)
        self._found: _probe.FoundEngine | None = None
        self._engine: Engine | None = None
        self._opening = asyncio.Lock()
        self._running: dict[tuple[SandboxId, int], RunningContainer] = {}
        self._tasks = TaskSet()
        self._start = self._tasks.start
        self._guest: Path | None = None
        self._preparing = asyncio.Lock()
        self._turns = asyncio.Semaphore(_AT_ONCE)
        self._processors = Processors()

    @property
    def capabilities(self) -> Capabilities:
        self.probe()
        held = self._limits()
        enforced = {Limit.OPEN_FILES, Limit.OUTPUT, Limit.TIME, Limit.TTL}
        enforced |= {limit for limit in (Limit.MEMORY, Limit.PROCESSES) if limit.value in held}
        return Capabilities(
            isolation=True,
            enforced=frozenset(enforced),
            root_user=True,
            adopt=True,
            trees=True,
            freeze=True,
            pause=True,
            idle=True,
            mounts=os.getuid() == 0,  # other owners are root's to show
            exits=self._found is not None and _probe.is_ours(self._found),
        )

    def _limits(self) -> frozenset[str]:
        return frozenset({"memory", "processes"}) if self._found is None else self._found.info.limits

    def probe(self) -> str | None:
        if self._found is not None and (self._engine is not None or os.path.exists(self._found.socket)):
            return None
        self._found = None  # one that has gone before it was used
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
        async with contextlib.AsyncExitStack() as turn:
            await turn.enter_async_context(self._turns)
            making = self._start(self._make(plan, turn))
            try:
                instance = await asyncio.shield(making)
            except asyncio.CancelledError:
                await asyncio.shield(self._start(self._unmake(plan.id, making)))
                raise
        with logged("reach the guest", plan.id):  # the next call gets the error
            await instance.connection("user")
        return instance

    def _require(self, plan: SandboxPlan) -> None:
        require_apart(plan, _carried(plan))
        wanted = {
            "mounts": plan.spec.mounts,
            "nested": plan.spec.nested or plan.parent,
            "exits": plan.exits or plan.protect,
        }
        for feature, asked in wanted.items():
            if asked:
                self.capabilities.require(feature, self.name)

    async def _make(self, plan: SandboxPlan, turn: contextlib.AsyncExitStack) -> ContainerInstance:
        engine = await self._open()
        guest = await self._program()
        image = await self._images.ensure(engine, plan.template)
        shown = [(Path(path), path) for path in shown_of_usr(plan.template)]
        shown += [(self._state / REPOSITORIES / t.tree, t.target) for t in plan.trees if t not in _carried(plan)]
        record = Record(
            id=plan.id,
            instance_id=plan.instance_id,
            deadline=plan.deadline,
            most_seconds=plan.deadline - proc.boottime(),
            retention_seconds=plan.retention_seconds,
            template=plan.template,
            env=of_commands(plan, certificates(TRUSTED)),
            boot=proc.boot_id(),
            trees=tuple(tree for tree in plan.trees if tree.writable),
            exits=plan.exits,
            tree=plan.tree,
        )
        try:
            place = self.records.make(record)
        except FileExistsError:
            raise AlreadyExistsError(f"there is a sandbox {plan.id} already") from None
        egress = EgressSockets()
        ours = self._found is not None and _probe.is_ours(self._found)
        entry = await asyncio.to_thread(NamespaceEntry) if ours else None
        self._being_made.add(plan.id)

        async def before(pid: int) -> None:
            if cpus is not None:
                with contextlib.suppress(PermissionError):  # another user's engine may not let us: the quota holds
                    os.sched_setaffinity(pid, cpus)
            if entry is not None:  # else it has neither mounts nor exits
                async with self.transfer.mounted(plan, pid) as mounts:
                    await egress.furnish(pid, mounts, plan.protect, exits=plan.exits, masks=masks, entry=entry)

        try:
            if plan.exits:
                show_trust(place / BIRTH)
            cpus = told(place / BIRTH / TOLD, plan.spec.limits, self._processors)
            masks = lying_over(place / BIRTH / TOLD)
            if entry is None:
                shown += engines_own(place / BIRTH / TOLD)
            with _start.expecting(place) as guest_start:
                asked = options(
                    plan,
                    image,
                    guest=guest,
                    guest_start=place / BIRTH,
                    owner=str(self._directory),
                    shown=shown,
                    held=self._limits(),
                )
                record = msgspec.structs.replace(record, engine=await create(engine, record.container, asked))
                orders = _start.orders(plan, self._limits())
                # The guest comes up while the engine still writes down that it has started it.
                starting = self._start(engine.post(f"/containers/{record.container}/start"))
                pid = await guest_start.call(orders, lambda: how_it_ended(engine, record.container), before, starting)
            await turn.aclose()  # what is carried into it may be much
            record = msgspec.structs.replace(record, pid=pid, start=proc.start_time(pid))
            self.records.write(record)
            running = self._supervise(record)
            running.egress = egress
            instance = ContainerInstance(self, running)
            await self._load(plan, record, running, instance)
            return instance
        except (OSError, PaddockError) as error:
            egress.close()
            await self._remove(engine, record.id)
            if isinstance(error, OSError):
                raise PlatformError(f"the container ended while it was made: {error}", hint="try again") from None
            raise
        finally:
            if entry is not None:
                await asyncio.to_thread(entry.close)
            self._being_made.discard(plan.id)

    async def _load(
        self, plan: SandboxPlan, record: Record, running: RunningContainer, instance: ContainerInstance
    ) -> None:
        trees = _carried(plan)
        if plan.begun:
            async with running.hold(HOLD_SECONDS):
                with contextlib.closing(await instance.connect("carrier")) as inside:
                    await self.transfer.back(plan.id, record.root, trees, inside)
        if trees:
            await self.transfer.into(plan.id, trees, instance, owner(plan.template))
            self.records.change(record.id, record.instance_id, loaded=True)

    async def _unmake(self, id: SandboxId, making: asyncio.Task[ContainerInstance]) -> None:
        with logged("make", id):  # then it has undone all by itself
            await (await making).kill()

    async def adopt(self, id: SandboxId) -> ContainerInstance | None:
        record = await asyncio.to_thread(self.records.read, id)
        if record is None or not record.lives():
            if record is not None:
                await self.cleanup.settled(id, record.instance_id)
            return None
        try:
            running = self._supervise(record)
        except ProcessLookupError:
            return None
        running.pause_clock.set(await asyncio.to_thread(_running.stands_still, record))
        return ContainerInstance(self, running)

    async def exits(self, id: SandboxId, instance_id: int, *, make: bool = False) -> Exits | None:
        self.capabilities.require("exits", self.name)
        async with self._locks.setdefault(id, asyncio.Lock()):
            record = self.records.read(id, instance_id)
            try:
                if record is None or not record.lives():
                    raise ProcessLookupError
                return await self._supervise(record).egress.exits(self.records, record, make=make)
            except ProcessLookupError:
                raise SandboxDiedError(f"sandbox {id} is gone") from None

    async def state(self) -> BackendState:
        still = await asyncio.to_thread(lambda: {r.id: r for r in self.records.all() if _running.stands_still(r)})
        for (id, _), running in self._running.items():
            running.pause_clock.set(id in still)
        found: dict[SandboxId, Ending | None] = {}
        for record in self.records.all():
            if record.id in self._being_made:
                continue
            if not record.lives() and record.owes:
                found[record.id] = None  # until its work is in the workspace
                self._start(self.cleanup.settle_quietly(record))
                continue
            found[record.id] = None if record.lives() else await self.cleanup.ending(record.id, record.instance_id)
            if found[record.id] is None and proc.boottime() > record.deadline + _OVERDUE_SECONDS:
                self._start(self._end_overdue(record))  # its pid 1 stands still, or a request holds it
        return BackendState(found, {id: Paused(record.left_seconds, record.deadline) for id, record in still.items()})

    async def kept(self) -> Mapping[ExecId, KeptExec]:
        living = {record.id for record in self.records.all() if record.lives()}
        if not living:
            return {}
        try:
            answer = await self.transfer.supervisor.request("list")
        except SupervisorUnavailableError:  # nor could the daemon before have had anything kept
            return {}
        outside: dict[SandboxId, dict[ExecId, str]] = answer["kept_outside"]
        for id in outside.keys() - living:
            for command in outside[id]:
                await self.descriptor_store(id).put(command, ())
        return {command: KeptExec(id, owner) for id in living for command, owner in outside.get(id, {}).items()}

    def descriptor_store(self, id: SandboxId) -> DescriptorStore:
        """Return the store of that sandbox's commands: the engine keeps none of them."""
        return DescriptorStore(self.transfer.supervisor, id, outside=True)

    async def forget(self, id: SandboxId) -> None:
        record = self.records.read(id)
        if record is not None:
            if record.lives() or id in self._being_made or record.owes:
                return
            engine = await self._open()
            await self.cleanup.take_out(engine, id, record.instance_id, then=partial(self._remove, engine, id))
        for key in [key for key in self._running if key[0] == id]:
            self._running.pop(key).close()
        if (lock := self._locks.get(id)) is not None and not lock.locked():
            del self._locks[id]

    # for its instances

    async def kill(self, id: SandboxId, instance_id: int, running: RunningContainer, *, why: Any = "caller") -> None:
        async with self._locks.setdefault(id, asyncio.Lock()):
            record = self.records.read(id, instance_id)
            if record is None:
                return
            if why == "deadline" and proc.boottime() <= record.deadline:  # it was given more time since
                return
            engine = await self._open()
            if record.lives():
                with contextlib.suppress(OSError):  # no room to note why: it ends all the same
                    self.records.change(id, instance_id, killed=why)
                with contextlib.suppress(PlatformError):
                    await self.unpause(running)
                try:
                    running.kill()
                except PermissionError:
                    await engine.post(f"/containers/{record.container}/kill", signal="KILL")
                async with asyncio.timeout(_KILL_SECONDS):
                    await asyncio.shield(running.ended)
            removal = partial(self._remove, engine, id) if why == "caller" else None
            await self.cleanup.take_out(engine, id, instance_id, then=removal)

    async def unpause(self, running: RunningContainer) -> None:
        """Resume a container that another program has paused through the engine."""
        if await asyncio.to_thread(_running.is_frozen, running.record):
            await (await self._open()).post(f"/containers/{running.record.container}/unpause")

    async def aclose(self) -> None:
        await self._tasks.cancel()
        for running in self._running.values():
            running.close()
        self._running.clear()
        await self.transfer.aclose()

    # the engine

    async def _open(self) -> Engine:
        """Return the engine, after removing the unfinished containers of dead daemons. Raises LevelUnavailableError."""
        async with self._opening:
            if self._engine is None:
                refusal = await asyncio.to_thread(self.probe)
                if self._found is None:
                    raise LevelUnavailableError(f"level 'container' is not available: {refusal}", hint="paddock doctor")
                engine = Engine(self._found.socket)
                await self._sweep(engine)
                self._engine = engine
            return self._engine

    async def _sweep(self, engine: Engine) -> None:
        for id, container in await owned(engine, str(self._directory)):
            if self.records.read(id) is None:
                await remove(engine, container)
        self.records.sweep()

    async def _remove(self, engine: Engine, id: SandboxId) -> None:
        """Remove a container completely, first in the engine: while there is a record, the next daemon tries again."""
        record = self.records.read(id)
        await remove(engine, name_of(id) if record is None else record.container)
        self.records.remove(id)

    async def _end_overdue(self, record: Record) -> None:
        with logged("end at its deadline", record.id):  # the next sweep tries again
            running = self._supervise(record)
            if not _running.is_frozen(record) and await asyncio.to_thread(_running.stands_still, record):
                await running.ask_times()  # it was paused for idleness while no daemon ran
            await self.kill(record.id, record.instance_id, running, why="deadline")

    def _supervise(self, record: Record) -> RunningContainer:
        """ProcessLookupError: it has ended."""
        key = (record.id, record.instance_id)
        if key not in self._running:
            self._running[key] = RunningContainer(record, self.records)
        return self._running[key]

    async def _program(self) -> Path:
        async with self._preparing:
            if self._guest is None:
                self._guest = await asyncio.to_thread(guest_directory, self._directory)
            return self._guest


def _carried(plan: SandboxPlan) -> tuple[TreeMount, ...]:
    """Return its trees without repositories, which the engine shows as they are."""
    return tuple(tree for tree in plan.trees if not tree.tree.startswith(IdPrefix.REPOSITORY))


_: type[Backend] = ContainerBackend
