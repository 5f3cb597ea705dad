"""The backend: plans become jails through the supervisor; commands and files go straight to the guest's agents."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import Callable, Coroutine, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import msgspec

from paddock.backends._environment import certificates, of_commands
from paddock.backends.base import Backend, BackendState, Capabilities, Ending, Exits, KeptExec, Paused, SandboxPlan
from paddock.backends.jail import _probe
from paddock.backends.jail._instance import JailInstance as JailInstance
from paddock.backends.jail._instance import paused_of
from paddock.backends.jail._spares import JailSpares
from paddock.backends.jail._supervisor import Message, SupervisorClient
from paddock.backends.pause_clock import PauseClock
from paddock.backends.threads import TaskSet
from paddock.errors import PaddockError, SandboxDiedError, SupervisorUnavailableError, logged
from paddock.model import Check, ExecId, ExecSpec, Level, Limit, SandboxId, Template, replace
from paddock.model.caller import directories
from paddock.model.config import read_config
from paddock.supervisor import layout, trust_places
from paddock.supervisor.plan import CLAIM, LATE, JailPlan, Mount, Tree, User

if TYPE_CHECKING:
    from paddock.storage import Pool
    from paddock.supervisor.records import Record

_MIB = 1 << 20
_KILLED = Ending(limit=None, reason="it was killed")
_GONE = Ending(limit=None, reason="it is gone")
_CERTIFICATES = certificates(f"/{trust_places.PLACE}")


class _SandboxState(msgspec.Struct, eq=False):
    """Hold the sandboxes of one id."""

    endings: dict[int, asyncio.Future[Ending]] = {}
    """Their ends, by the number of the start."""
    pause_clock: PauseClock = msgspec.field(default_factory=PauseClock)
    is_late: bool = False
    """It got exits while it ran: its environment doesn't name certificates."""


class JailBackend:
    """Make jails of one state directory. `storage.prepare` must have chosen the pool before the first create.

    `for_tests` starts a supervisor that honours `fault`. With `trace`, `last_timings` holds the seconds of each step of
    the last create.
    """

    name = "jail"
    level = Level.JAIL
    instance: type[JailInstance] = JailInstance
    """The class of its sandboxes."""
    hinted = True
    """The limits can't be seen inside, so variables say them."""

    def __init__(self, state_dir: Path, *, supervisor: SupervisorClient | None = None, for_tests: bool = False) -> None:
        self._sandboxes: dict[SandboxId, _SandboxState] = {}
        """Sandboxes that are or were held here."""
        self._being_made: set[SandboxId] = set()
        self._awake: dict[int, tuple[SandboxId, int]] = {}
        """The holds that keep one awake, by number."""
        self._exits: dict[tuple[SandboxId, int], Exits] = {}
        """Exits that came with the answer to a create, until the gateway gets them."""
        self._tasks = TaskSet()
        self.start = self._tasks.start
        self.supervisor = supervisor or SupervisorClient(state_dir, for_tests=for_tests)
        self.supervisor.join(self._heard)
        self.directory, self.config = state_dir, read_config(state_dir)
        self.spares = JailSpares(self, self.config.spares) if self.level is Level.JAIL else None
        self.trace = False
        self.fault = ""
        self.last_timings: dict[str, float] = {}

    @property
    def capabilities(self) -> Capabilities:
        root = os.getuid() == 0
        enforced = {Limit.OPEN_FILES, Limit.OUTPUT, Limit.TIME, Limit.TTL}
        facts = self.supervisor.facts
        groups = facts.get("cgroups", ("memory", "pids") if root else ())
        enforced |= {limit for limit, name in ((Limit.MEMORY, "memory"), (Limit.PROCESSES, "pids")) if name in groups}
        if facts.get("btrfs", False) and root:
            enforced |= {Limit.DISK, Limit.INODES} if facts["quotas"] else {Limit.INODES}
        kinds = {"memory": {Limit.MEMORY, Limit.PROCESSES}, "disk": {Limit.DISK, Limit.INODES}}
        watched = frozenset[Limit]().union(*(kinds[kind] for kind in facts.get("watched", ()))) - enforced
        return Capabilities(
            isolation=True,
            enforced=frozenset(enforced),
            watched=frozenset(watched),
            root_user=self.root_user,
            adopt=True,
            freeze=True,
            pause=True,
            idle=True,
            mounts=True,
            nested=True,
            trees=True,
            exits=True,
        )

    @property
    def whole(self) -> bool:
        """Whether sandboxes have all user ids of a system, root's too. For an ordinary user the supervisor has to be
        connected first."""
        return os.getuid() == 0 or bool(self.supervisor.facts.get("root_user", False))

    @property
    def root_user(self) -> bool:
        """`user="root"` works inside."""
        return self.whole

    def probe(self) -> str | None:
        return _probe.unusable()

    def remedy(self, reason: str) -> str | None:
        """Return what to do about an answer of `probe` that doesn't say it."""
        return _probe.remedy(reason)

    def checks(self) -> tuple[Check, ...]:
        return _probe.checks(self.capabilities, self.supervisor.facts, self.directory)

    async def create(self, plan: SandboxPlan) -> JailInstance:
        jail = self.jail_plan(plan)
        if self.spares is None:
            return await self.make(plan, jail)
        with self.spares.creating():
            if await self.spares.claim(plan.id):
                with contextlib.suppress(SandboxDiedError):  # it has died in waiting: its tree is as it was
                    return await self.make(plan, jail, ahead=True)
            return await self.make(plan, jail._replace(fault="") if jail.fault.startswith(CLAIM) else jail)

    async def make(self, plan: SandboxPlan, jail: JailPlan, *, ahead: bool = False) -> JailInstance:
        """Make the sandbox of `plan` as `jail` says, from a taken spare if `ahead`. If the supervisor dies meanwhile,
        ask its successor once."""
        try:
            return await self._make(plan, jail, ahead)
        except SupervisorUnavailableError as error:
            if not error.details.get("lost"):
                raise
        self.supervisor.forget(plan.id)
        return await self._make(plan, jail._replace(fault=""))

    async def _make(self, plan: SandboxPlan, jail: JailPlan, ahead: bool = False) -> JailInstance:
        request = self._commit(jail) if ahead else self.supervisor.request("create", plan=jail.to_message())
        making = self.start(self._made(plan, request))
        was_known = plan.id in self._sandboxes
        self.ending(plan.id, plan.instance_id)  # it may come in the same breath as the answer
        self._being_made.add(plan.id)
        try:
            answer = await asyncio.shield(making)
            instance = self.instance(self, plan.id, plan.template, plan.instance_id, jail.env)
            instance.pid, instance.is_new = answer["pid"], True
            with logged("reach the guest", plan.id):  # the next call gets the error
                await instance.turn_to()
        except BaseException as error:
            if not was_known:
                self._sandboxes.pop(plan.id, None)
            if isinstance(error, asyncio.CancelledError | SupervisorUnavailableError):
                # The supervisor goes on all the same, or its successor finds what was complete when it died. Should the
                # caller lose patience here too, this is still done.
                await asyncio.shield(self.start(self._unmake(plan, making)))
            raise
        finally:
            self._being_made.discard(plan.id)
        self.last_timings = cast("dict[str, float]", answer["timings"])
        return instance

    async def _made(self, plan: SandboxPlan, request: Coroutine[Any, Any, Message]) -> Message:
        answer = await request
        if (exits := self._exits_of(plan.id, answer)) is not None:
            self._exits[plan.id, plan.instance_id] = exits
        return answer

    def _commit(self, jail: JailPlan) -> Coroutine[Any, Any, Message]:
        late: Message = {name: getattr(jail, name) for name in LATE}
        late["fault"] = jail.fault.removeprefix(CLAIM)
        return self.supervisor.request("commit", (), id=jail.id, **late)

    async def trees(self) -> Pool:
        return (await self.supervisor.templates()).pool

    async def _unmake(self, plan: SandboxPlan, making: asyncio.Task[Message]) -> None:
        with logged("undo the making", plan.id):  # no supervisor can be had: a sweep finds what is left
            try:
                await making
            except SupervisorUnavailableError as error:
                if error.details.get("unheard"):
                    return
            with contextlib.suppress(SandboxDiedError):
                await self.supervisor.request("kill", id=plan.id, instance_id=plan.instance_id)
            await self.forget(plan.id)

    def jail_plan(self, plan: SandboxPlan) -> JailPlan:
        template, limits = plan.template, plan.spec.limits
        return JailPlan(
            id=plan.id,
            hostname=plan.hostname,
            tree=plan.tree,
            layers=template.layers,
            host_usr=template.host_usr,
            users=tuple(User(name=u.name, uid=u.uid, gid=u.gid, home=u.home) for u in template.users),
            default_user=template.default_user,
            workdir=template.workdir,
            env=of_commands(plan, _CERTIFICATES, hinted=self.hinted),
            template=msgspec.json.encode(template).decode(),
            deadline=plan.deadline,
            parent=plan.parent or "",
            cpus=limits.cpus,
            memory_bytes=limits.memory_mib * _MIB,
            swap_bytes=limits.swap_mib * _MIB,
            processes=limits.processes,
            open_files=limits.open_files,
            disk_bytes=limits.disk_mib * _MIB,
            inodes=limits.inodes,
            tmp_bytes=limits.tmp_mib * _MIB,
            mounts=tuple(
                Mount(source=m.source, target=m.target, mode=m.mode.value, seen=directories().get(m.source))
                for m in plan.spec.mounts
            ),
            trees=tuple(
                Tree(name=t.tree, target=t.target, writable=t.writable, layers=t.layers, disk_bytes=t.disk_bytes)
                for t in plan.trees
            ),
            instance_id=plan.instance_id,
            exits=plan.exits,
            protect=plan.protect,
            idle_seconds=plan.spec.idle_seconds or 0.0,
            retention_seconds=plan.retention_seconds,
            kind=self.name,
            trace=self.trace,
            fault=self.fault,
        )

    async def adopt(self, id: SandboxId) -> JailInstance | None:
        was_known = id in self._sandboxes
        known = self.state_of(id)  # it may end while it is looked for
        try:
            record = await self.record(id)
            if record.kind != self.name:
                raise SandboxDiedError(f"{id} is another backend's")
        except SandboxDiedError:
            if not was_known:
                self._sandboxes.pop(id, None)
            return None
        self.ending(id, record.instance_id)
        known.is_late |= record.late
        known.pause_clock.set(record.paused)
        template = msgspec.json.decode(record.template, type=Template)
        instance = self.instance(self, id, template, record.instance_id, record.env)
        instance.pid = record.pid
        return instance

    async def record(self, id: SandboxId) -> Record:
        """Return what the supervisor has recorded of a living one. SandboxDied."""
        from paddock.supervisor.records import Record

        return Record(**await self.supervisor.request("inspect", id=id))

    async def exits(self, id: SandboxId, instance_id: int, *, make: bool = False) -> Exits | None:
        if (held := self._exits.pop((id, instance_id), None)) is not None:
            return held
        return self._exits_of(id, await self.supervisor.request("exits", id=id, instance_id=instance_id, make=make))

    def _exits_of(self, id: SandboxId, answer: Message) -> Exits | None:
        self.state_of(id).is_late |= answer["late"]
        descriptors = cast("list[int]", answer.get("fds", []))
        if not descriptors:
            return None
        process = descriptors.pop()
        sockets = tuple([socket.socket(fileno=fd) for fd in descriptors])
        return Exits(sockets, process, (answer["pid"], answer["start"]))

    async def state(self) -> BackendState:
        answer = await self.supervisor.request("list")
        mine = self._mine(answer)
        return BackendState(
            living={**self._endings(answer), **dict.fromkeys(mine)},
            paused={id: paused for id, paused in self._listed_paused(answer).items() if id in mine},
        )

    async def kept(self) -> Mapping[ExecId, KeptExec]:
        answer = await self.supervisor.request("list")
        kept: dict[SandboxId, dict[ExecId, str]] = answer.get("kept", {})
        mine = self._mine(answer)
        return {command: KeptExec(id, owner) for id in mine for command, owner in kept.get(id, {}).items()}

    def _mine(self, answer: Message) -> frozenset[SandboxId]:
        kinds = cast("dict[str, str]", answer["kinds"])
        return frozenset(SandboxId(id) for id, kind in kinds.items() if kind == self.name)

    def _endings(self, answer: Message) -> dict[SandboxId, Ending]:
        """Return the ends that the supervisor's list has. Each backend reports those whose level isn't known."""
        ended = cast("dict[str, dict[str, Any]]", answer["ended"])
        mine = {id: one for id, one in ended.items() if one["kind"] in (self.name, "")}
        return {SandboxId(id): _ending(one["limit"], one["reason"] or "") for id, one in mine.items()}

    async def forget(self, id: SandboxId) -> None:
        if (known := self._sandboxes.pop(id, None)) is not None:
            known.pause_clock.end()  # no caller waits for that any more
        for key in [key for key in self._exits if key[0] == id]:
            self._exits.pop(key).close()
        if self.spares is not None:
            await self.spares.claim(id)
        self.supervisor.forget(id)

    async def kill(self, id: SandboxId, instance_id: int) -> None:
        ending = _KILLED
        try:
            await self.supervisor.request("kill", id=id, instance_id=instance_id)
        except SandboxDiedError:
            ending = _GONE
        self._settle(id, instance_id, ending)

    def furnished(self, id: SandboxId, spec: ExecSpec) -> ExecSpec:
        if not self.state_of(id).is_late:
            return spec
        return replace(spec, env={**_CERTIFICATES, **spec.env})

    def socket(self, id: SandboxId, identity: str) -> Path:
        return self.directory / layout.RUN / id / f"{identity}.sock"

    def state_of(self, id: SandboxId) -> _SandboxState:
        return self._sandboxes.get(id) or self._sandboxes.setdefault(id, _SandboxState())

    def ending(self, id: SandboxId, instance_id: int) -> asyncio.Future[Ending]:
        endings = self.state_of(id).endings
        if instance_id not in endings:
            endings[instance_id] = asyncio.get_running_loop().create_future()
        return endings[instance_id]

    async def stay_awake(self, id: SandboxId, instance_id: int) -> Callable[[], None]:
        hold = next(self.supervisor.holds)
        self._awake[hold] = id, instance_id

        def let_go() -> None:
            if self._awake.pop(hold, None) is not None:
                self.start(self._let_rest(id, hold))

        try:
            await self.supervisor.request("awake", id=id, instance_id=instance_id, hold=hold)
        except BaseException:
            let_go()
            raise
        return let_go

    async def _let_rest(self, id: SandboxId, hold: int) -> None:
        with logged("let sleep", id):  # it keeps nothing awake for a connection that has ended
            await self.supervisor.tell("rest", id=id, hold=hold)

    async def hold_again(self) -> None:
        """Keep the same ones awake, with a supervisor that knows nothing of it."""
        for hold, (id, instance_id) in list(self._awake.items()):
            if hold in self._awake:  # what was let go meanwhile would be held for ever
                await self.supervisor.request("awake", id=id, instance_id=instance_id, hold=hold)

    def _listed_paused(self, answer: Message) -> dict[SandboxId, Paused]:
        """Return the paused ones of the supervisor's list: earlier news may have been missed."""
        listed = cast("dict[str, Message]", answer["paused"])
        paused = {SandboxId(id): paused_of(times) for id, times in listed.items()}
        for id, known in self._sandboxes.items():
            known.pause_clock.set(id in paused)
        return paused

    async def aclose(self) -> None:
        if self.spares is not None:
            await self.spares.aclose()
        await self._tasks.cancel()
        for exits in self._exits.values():
            exits.close()
        self._exits.clear()
        self.supervisor.leave(self._heard)

    def _settle(self, id: SandboxId, instance_id: int, ending: Ending) -> None:
        if id in self._sandboxes:
            future = self.ending(id, instance_id)
            if not future.done():
                future.set_result(ending)

    def _heard(self, event: Message) -> None:
        match event["event"]:
            case "lost":
                self._on_lost()
            case "replaced":
                self._on_replaced()
            case "ended":
                self._settle(event["id"], event["instance_id"], _ending(event["limit"], event["reason"]))
                self._tell(event["id"], False)
            case what:
                self._tell(event["id"], what == "paused")

    def _tell(self, id: SandboxId, paused: bool) -> None:
        if (known := self._sandboxes.get(id)) is not None:
            known.pause_clock.set(paused)

    def _on_lost(self) -> None:
        if self.spares is not None:
            self.spares.lost()

        # Its successor takes over living sandboxes and reports their ends: callers go on waiting.
        async def reconnect() -> None:
            with logged("connect to the supervisor", "after its end"):  # the next call gets the error
                await self.supervisor.connect()

        if self._awaited():
            self.start(reconnect())

    def _on_replaced(self) -> None:
        # The deaths that happened while there was no supervisor to tell of them are in its records.
        async def catch_up() -> None:
            # A sandbox in the making doesn't live yet, and has not ended.
            waiting = [(id, number) for id, number in self._awaited() if id not in self._being_made]
            try:
                await self.hold_again()
                answer = await self.supervisor.request("list")
            except PaddockError:
                return  # it is lost again: the next connection asks again
            self._listed_paused(answer)
            ended = self._endings(answer)
            for id, instance_id in waiting:
                if answer["living"].get(id) != instance_id:
                    self._settle(id, instance_id, ended.get(id, _GONE))

        self.start(catch_up())

    def _awaited(self) -> list[tuple[SandboxId, int]]:
        return [
            (id, number) for id, known in self._sandboxes.items() for number, f in known.endings.items() if not f.done()
        ]


def _ending(limit: str | None, reason: str) -> Ending:
    return Ending(limit=Limit(limit) if limit else None, reason=reason)


_: type[Backend] = JailBackend
