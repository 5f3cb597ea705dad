"""One history: programs that use a daemon, and what happens to it, all drawn from a seed; then what must be true."""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Awaitable
from typing import Any

import msgspec

from paddock.backends.base import Ending
from paddock.errors import DaemonLostError, DaemonUnavailableError, InternalError, PaddockError
from paddock.model import (
    AttachExec,
    CreateSandbox,
    CreateSnapshot,
    DeleteSnapshot,
    DeleteWorkspace,
    EgressRules,
    ExecSpec,
    ExtendSandbox,
    ForkSandbox,
    GetSandbox,
    IdPrefix,
    InspectSandbox,
    KillSandbox,
    ListExecs,
    ListSandboxes,
    OpenWorkspace,
    PauseSandbox,
    PolicyDocument,
    ResumeSandbox,
    RollbackSandbox,
    RunExec,
    SandboxSpec,
    SetPolicy,
    SignalExec,
    StartExec,
    codec,
    mint,
    replace,
)
from paddock.wire import AGAIN

from .checks import check
from .daemon import Connection, SimulatedDaemon, daemon_context
from .event_loop import Endless, Stuck
from .world import DaemonDied, Violation, World

HOUR = 3600.0
UNCLAIMED_SECONDS = 60.0
"""By then a daemon has ended what no session claims."""
PATIENT_SECONDS = 400.0
"""No call waits longer, but for a command that it waits for."""
POLICIES = tuple(
    PolicyDocument(egress=msgspec.convert({"allow": [{"host": host}]}, EgressRules))
    for host in ("one.example", "two.example")
)


class Task:
    """What the model knows of one workspace."""

    def __init__(self) -> None:
        self.writes: set[str] = set()
        """Acknowledged, and no rollback was asked for since they began."""
        self.is_deleted = False
        """Or may be."""


class Box:
    """What the model knows of one sandbox: who may have ended it, and what is acknowledged."""

    def __init__(self, id: str, *, persistent: bool, task: Task | None = None) -> None:
        self.id, self.persistent, self.task = id, persistent, task
        self.owners: set[Program] = set()
        """Sessions that have created or connected to it and were told so."""
        self.may_own: set[Program] = set()
        self.killed = self.crashed = self.may_end_with_session = False
        self.was_extended = False
        self.snapshots: list[str] = []
        self.writes: set[str] = set()
        """Acknowledged, and no rollback was asked for since they began."""
        self.rollbacks = self.rolling = 0
        """Asked for; of these, the ones that may come yet."""
        self.background: list[str] = []


class Program:
    """A client process: one session, several calls at a time."""

    def __init__(self, history: History, number: int) -> None:
        self.history, self.world, self.number = history, history.world, number
        self.token, self.pid, self.lives = f"{number:032x}", 100 + number, True
        self.connection: Connection | None = None
        self.was_cut = False
        """Its connection has ended: if it was slow to come back, its session has, too."""
        self._daemon: SimulatedDaemon | None = None
        self._context: Any = None
        self._channel = self._asked = 0
        self.waiting: dict[int, asyncio.Future[tuple[bool, bytes]]] = {}
        self.world.processes.add(self.pid)

    async def ask(self, action: Any = None, *, call: Any = None, leaves_after: float | None = None) -> bytes:
        """As a client asks: once more, by the request's id, if the connection ends before the answer. PaddockError;
        DaemonLostError if nobody knows what became of it; CancelledError if the call was taken back."""
        self._asked += 1
        is_command = isinstance(action, RunExec | StartExec)
        id = mint(IdPrefix.EXEC) if is_command else f"{self.number}-{self._asked}"
        body = codec.encode(codec.Request(action=action, call=call, id=id))
        repeatable = isinstance(action, CreateSandbox) or (action is not None and action.REPEATABLE)
        flags = 0
        try:
            return await self._ask_once(body, 0, leaves_after)
        except ConnectionResetError:
            flags = AGAIN
        except DaemonLostError:  # it leaves
            if not repeatable:
                raise
            flags = AGAIN
        except DaemonUnavailableError:  # it leaves, and has not begun
            pass
        try:
            return await self._ask_once(body, flags, leaves_after)
        except ConnectionResetError:
            raise DaemonLostError("it died") from None

    async def _ask_once(self, body: bytes, flags: int, leaves_after: float | None) -> bytes:
        history, world = self.history, self.world
        await history.listening()
        self._connect()
        self._channel += 1
        channel, connection = self._channel, self.connection
        assert connection is not None
        answer: asyncio.Future[tuple[bool, bytes]] = world.loop.create_future()
        self.waiting[channel] = answer
        context = self._context

        def told(ok: bool, body: bytes) -> None:
            world.loop.outside(world.seconds() / 10, lambda: answer.done() or answer.set_result((ok, body)))

        def take() -> None:
            if not connection.closed:
                connection.take(channel, body, told, flags)

        world.loop.outside(0.0, take, context=context)
        if leaves_after is not None:
            world.loop.outside(leaves_after, lambda: connection.cancel(channel), context=context)
        try:
            ok, body = await answer
        finally:
            del self.waiting[channel]
        if not ok:
            raise codec.decode_error(body)
        return body

    def _connect(self) -> None:
        history = self.history
        if self._daemon is not history.daemon or self.connection is None:
            assert history.daemon is not None
            self._daemon, self._context = history.daemon, history.context
            self.connection = self._context.run(Connection, self._daemon, self.token, self.pid)

    def lose(self) -> None:
        """Its connection has ended, or the daemon has gone."""
        self.connection = None
        for answer in tuple(self.waiting.values()):
            self.world.loop.outside(0.0, lambda a=answer: a.done() or a.set_exception(ConnectionResetError("it died")))

    def die(self) -> None:
        if not self.lives:
            return
        self.world.note("program", self.number, "dies")
        self.lives = False
        self.world.processes.discard(self.pid)
        self.world.loop.readable(self.pid)
        for box in self.history.boxes.values():
            if not any(owner.lives for owner in box.owners):
                box.may_end_with_session = True
        connection = self.connection
        if connection is not None and self.world.likely(0.5):
            self.world.loop.outside(0.0, connection.close, context=self._context)
        for answer in tuple(self.waiting.values()):
            self.world.loop.outside(0.0, answer.cancel)


class History:
    """`SEED@N`: in the history SEED the first daemon dies, and the second N steps after its start."""

    def __init__(self, seed: str, *, keeps_trace: bool = False) -> None:
        drawn, _, second = seed.partition("@")
        world = self.world = World(drawn, keeps_trace=keeps_trace)
        world.seed = seed
        self._second_dies_after = int(second) if second else -1
        self.chance = world.chance
        self.daemon: SimulatedDaemon | None = None
        self.context: Any = None
        self._listens = asyncio.Event()
        self._starting = False
        self.boxes: dict[str, Box] = {}
        self.tasks: dict[str, Task] = {}
        """By the id of their workspaces."""
        self.makers: dict[str, Program] = {}
        """By what a create was labelled with."""
        self.forkers: dict[str, set[Program]] = {}
        self.forks: dict[float, int] = {}
        """How many were asked for, by the TTL, which each fork has of its own."""
        self.disk_was_full = False
        self.verb = 0
        self.under_way: dict[int, str] = {}
        self.deaths = 0
        self.calm = False
        world.died = self.daemon_dies
        self.programs: list[Program] = []
        self.looked = self.started_at = 0.0
        self.period = 30.0 if world.likely(0.7) else 12.0
        self.has_workspaces = world.likely(0.5)

    # The daemon

    async def listening(self) -> None:
        while not (self.daemon is not None and self._listens.is_set()):
            if self.daemon is None:
                self.start_daemon()
            await self._listens.wait()

    def start_daemon(self) -> None:
        world = self.world
        world.generation += 1
        world.loop.alive = number = world.generation
        world.note("daemon", number, "starts")
        self.started_at = world.loop.time()
        self._listens.clear()
        if self.calm:
            pass
        elif self._second_dies_after >= 0:
            world.dies_after = {1: 50 + int(self.chance.random() * 500), 2: self._second_dies_after}.get(number, -1)
        elif self.deaths < 3 and world.likely(0.7):
            world.dies_after = int(self.chance.random() ** 2 * 1500)
        context = self.context = daemon_context(number)

        def ready() -> None:
            world.note("daemon", number, "listens")
            self._listens.set()

        async def serve() -> None:
            try:
                daemon = self.daemon
                assert daemon is not None
                await daemon.serve(ready)
                self.daemon_left()
            except DaemonDied:
                pass
            except Exception as error:
                world.note("daemon", number, "fails:", type(error).__name__, error)
                if not isinstance(error, PaddockError | OSError):
                    world.failed("the daemon could not go on", error)
                elif self.calm:
                    world.violate(f"the daemon cannot start: {error}")
                self.daemon_left()

        def begin() -> None:
            try:
                self.daemon = SimulatedDaemon(world, self.period)
            except DaemonDied:
                return
            world.loop.create_task(serve(), name=f"daemon {number}")

        context.run(begin)

    def daemon_dies(self) -> None:
        self.world.note("daemon", self.world.generation, "dies")
        self.deaths += 1
        self._gone()

    def daemon_left(self) -> None:
        self.world.note("daemon", self.world.generation, "has left")
        self._gone()

    def _gone(self) -> None:
        world = self.world
        world.loop.kept.append(self.daemon)
        world.loop.alive, self.daemon, world.dies_after = -1, None, -1
        world.disk.roll_back()
        world.supervisor.daemon_died()
        for program in self.programs:
            program.lose()
        self._listens.set()  # whoever waits starts the next one

    # What happens

    async def play(self) -> None:
        world, chance = self.world, self.chance
        self.programs = [Program(self, number) for number in range(1, 2 + int(chance.random() * 3))]
        events = [world.loop.create_task(self._fault(), name="fault") for _ in range(int(chance.random() * 4))]
        uses = [
            world.loop.create_task(self._use(program), name=f"program {program.number}") for program in self.programs
        ]
        await asyncio.wait(uses)
        for event in events:
            event.cancel()
        if events:
            await asyncio.wait(events)
        for task in (*uses, *events):
            if not task.cancelled() and (error := task.exception()) is not None:
                world.failed(f"{task.get_name()}", error)
        await self._quiet()

    async def _use(self, program: Program) -> None:
        calls: set[asyncio.Task[None]] = set()
        for _ in range(3 + int(self.chance.random() * 5)):
            if not program.lives:
                break
            call = self.world.loop.create_task(self._verb(program))
            calls.add(call)
            if self.world.likely(0.5):
                await asyncio.wait({call}, timeout=self.chance.random() * 20)
            else:
                await asyncio.sleep(0 if self.world.likely(0.5) else self.chance.random())
        if calls:
            await asyncio.wait(calls, timeout=self.chance.random() * 60)
        if self.world.likely(0.5):
            program.die()
        for call in [one for one in calls if not one.done()]:
            call.cancel()
        await asyncio.wait(calls)
        for call in calls:
            if not call.cancelled() and (error := call.exception()) is not None:
                raise error

    async def _fault(self) -> None:
        world, chance = self.world, self.chance
        await asyncio.sleep(chance.random() * 30)
        kind = int(chance.random() * 10)
        if kind == 0:
            world.supervisor.die()
        elif kind == 1:
            world.note("the supervisor is away")
            world.supervisor.die()
            world.supervisor.is_away = True
            try:
                await asyncio.sleep(chance.random() * 30)
            finally:
                world.supervisor.is_away = False
        elif kind == 2:
            world.gateway.die()
        elif kind == 3:
            world.note("the disk is full")
            world.disk_is_full = self.disk_was_full = True
            try:
                await asyncio.sleep(chance.random() * 30)
            finally:
                world.disk_is_full = False
                world.note("the disk has room")
        elif kind == 4:
            world.wall_offset -= chance.random() * 10_000
        elif kind == 5:
            world.sleep(chance.random() * 500)
        elif kind == 6:
            world.failures = 0.1
            try:
                await asyncio.sleep(chance.random() * 30)
            finally:
                world.failures = 0.0
        elif kind == 7:
            living = [place for place in world.supervisor.places.values() if place.ended is None]
            if living:
                place = living[int(chance.random() * len(living))]
                if (box := self.boxes.get(place.plan.id)) is not None:
                    box.crashed = True
                    place.end(Ending(limit=None, reason="its pid 1 has ended"))
        elif kind == 8:
            connected = [one for one in self.programs if one.connection is not None and one.lives and one.waiting]
            if connected:
                program = connected[int(chance.random() * len(connected))]
                world.note("a connection of program", program.number, "ends")
                world.loop.outside(0.0, program.connection.close, context=self.context)
                program.was_cut = True
                program.lose()
        elif self.daemon is not None and self._listens.is_set():
            self.context.run(self.daemon.leave)

    async def _verb(self, program: Program) -> None:
        self.verb += 1
        number, began = self.verb, self.world.loop.time()
        waits, name, call = self._choose(program, number)
        self.world.note("program", program.number, "asks", number, name)
        self.under_way[number] = name
        try:
            await call
            outcome = "done"
        except asyncio.CancelledError:
            outcome = "taken back"
            raise
        except InternalError as error:
            outcome = f"internal: {error}"
            if "was cancelled" not in error.message:
                self.world.violate(f"{name} {number}: {error}")
        except PaddockError as error:
            outcome = f"{type(error).__name__}: {error}"
        except Exception as error:
            outcome = f"{type(error).__name__}: {error}"
            self.world.violate(f"{name} {number}: {outcome}")
        finally:
            del self.under_way[number]
            self.world.note("answer", number, name, outcome[:100])
        took = self.world.loop.time() - began
        if not waits and took > PATIENT_SECONDS:
            self.world.violate(f"{name} {number} took {took:.0f} s")

    def _choose(self, program: Program, number: int) -> tuple[bool, str, Awaitable[object]]:
        """Whether it waits for a long command, its name, and the call."""
        chance, drawn = self.chance, self.chance.random()
        leaves = chance.random() ** 3 * 3 if self.world.likely(0.15) else None
        boxes = list(self.boxes.values())
        if self.has_workspaces and self.world.likely(0.1):
            return False, "workspace", self._workspace(program, leaves)
        if not boxes or drawn < 0.15:
            return False, "create", self._create(program, number, leaves)
        box = boxes[int(chance.random() * len(boxes))]
        snapshots = [id for one in boxes for id in one.snapshots]

        def ask(action: Any) -> Awaitable[bytes]:
            return program.ask(action, leaves_after=leaves)

        id = box.id
        if drawn < 0.27:
            return False, "exec", self._write(program, box, number, leaves)
        if drawn < 0.31:
            return True, "long", ask(RunExec(sandbox=id, spec=ExecSpec(argv=(f"c{number}", f"{HOUR}"))))
        if drawn < 0.37:
            return False, "start", self._start(program, box, number, leaves)
        if drawn < 0.42:
            return False, "kill", self._kill(program, box, leaves)
        if drawn < 0.50:
            return False, "pause", ask(PauseSandbox(sandbox=id, force=self.world.likely(0.7)))
        if drawn < 0.57:
            return False, "to disk", ask(PauseSandbox(sandbox=id, to_disk=True, force=self.world.likely(0.7)))
        if drawn < 0.61:
            return False, "resume", ask(ResumeSandbox(sandbox=id))
        if drawn < 0.64:
            return False, "extend", self._extend(program, box, leaves)
        if drawn < 0.70:
            return False, "snapshot", self._snapshot(program, box, leaves)
        if drawn < 0.75:
            return False, "fork", self._fork(program, box, number, leaves)
        if drawn < 0.82 and snapshots:
            return False, "rollback", self._rollback(program, box, snapshots, leaves)
        if drawn < 0.83 and snapshots:
            return False, "delete", ask(DeleteSnapshot(snapshot=snapshots[int(chance.random() * len(snapshots))]))
        if drawn < 0.87:
            policy = None if self.world.likely(0.3) else POLICIES[int(chance.random() * 2)]
            return False, "policy", ask(SetPolicy(sandbox=id, policy=policy))
        if drawn < 0.91:
            return False, "get", self._get(program, box, leaves)
        if drawn < 0.94:
            return False, "list", ask(ListSandboxes())
        if drawn < 0.96:
            return False, "inspect", ask(InspectSandbox(sandbox=id))
        if drawn < 0.97 and box.background:
            return False, "signal", ask(SignalExec(sandbox=id, exec=box.background[-1], signal=9))
        if drawn < 0.98 and box.background:
            return False, "attach", ask(AttachExec(sandbox=id, exec=box.background[-1]))
        return False, "execs", ask(ListExecs(sandbox=id))

    async def _workspace(self, program: Program, leaves: float | None) -> None:
        if self.tasks and self.world.likely(0.3):
            id = list(self.tasks)[int(self.chance.random() * len(self.tasks))]
            self.tasks[id].is_deleted = True
            await program.ask(DeleteWorkspace(workspace=id, discard=True), leaves_after=leaves)
        else:
            name = f"task{int(self.chance.random() * 2)}"
            told = msgspec.json.decode(await program.ask(OpenWorkspace(name=name), leaves_after=leaves))
            self.tasks.setdefault(told["id"], Task())

    async def _create(self, program: Program, number: int, leaves: float | None) -> None:
        world, chance = self.world, self.chance
        persistent, key = world.likely(0.6), None
        snapshots = [id for box in self.boxes.values() for id in box.snapshots]
        if world.likely(0.2):
            key, tag = f"key{int(chance.random() * 2)}", "shared"
        else:
            tag = f"r{number}"
            self.makers[tag] = program
        spec = SandboxSpec(
            persistent=persistent,
            ttl_seconds=HOUR if world.likely(0.7) else 20 + chance.random() * 200,
            labels={"request": tag},
            policy=POLICIES[0] if world.likely(0.25) else None,
            idle_seconds=5 + chance.random() * 20 if world.likely(0.2) else None,
            snapshot=snapshots[-1] if snapshots and world.likely(0.2) else None,
        )
        task = None
        if self.tasks and spec.snapshot is None and world.likely(0.6):
            task = list(self.tasks)[int(chance.random() * len(self.tasks))]
            spec = replace(spec, workspace=task)
        if key is not None:
            task = None
            spec = SandboxSpec(persistent=True, ttl_seconds=HOUR, labels={"request": tag})
        told = await program.ask(CreateSandbox(spec=spec, idempotency_key=key), leaves_after=leaves)
        id = msgspec.json.decode(told)["id"]
        box = Box(id, persistent=spec.persistent, task=None if task is None else self.tasks[task])
        self._owns(program, self.boxes.setdefault(id, box))

    def _owns(self, program: Program, box: Box) -> None:
        box.owners.add(program)
        if not program.lives and not any(owner.lives for owner in box.owners):
            box.may_end_with_session = True

    async def _get(self, program: Program, box: Box, leaves: float | None) -> None:
        box.may_own.add(program)
        await program.ask(GetSandbox(sandbox=box.id), leaves_after=leaves)
        self._owns(program, box)

    async def _write(self, program: Program, box: Box, number: int, leaves: float | None) -> None:
        before, token = None if box.rolling else box.rollbacks, f"w{number}"
        seconds = 0.0 if self.world.likely(0.5) else self.chance.random() * 3
        action = RunExec(sandbox=box.id, spec=ExecSpec(argv=(f"c{number}", f"{seconds}", token)))
        told = msgspec.json.decode(await program.ask(action, leaves_after=leaves))
        if told["status"].get("code") == 0 and box.rollbacks == before:
            box.writes.add(token)
            if box.task is not None:
                box.task.writes.add(token)

    async def _start(self, program: Program, box: Box, number: int, leaves: float | None) -> None:
        background = self.world.likely(0.7)
        action = StartExec(
            sandbox=box.id,
            spec=ExecSpec(argv=(f"c{number}", f"{self.chance.random() * 60}")),
            background=background,
        )
        told = msgspec.json.decode(await program.ask(action, leaves_after=leaves))
        if background:
            box.background.append(told["id"])
        if self.world.likely(0.5):
            await asyncio.sleep(self.chance.random())
            await program.ask(call=codec.Call(handle=told["handle"], method="close"))

    async def _kill(self, program: Program, box: Box, leaves: float | None) -> None:
        box.killed = True
        await program.ask(KillSandbox(sandbox=box.id), leaves_after=leaves)
        place = self.world.supervisor.places.get(box.id)  # pyright: ignore[reportArgumentType]
        if place is not None and place.ended is None:
            self.world.violate(f"{box.id} lives after its kill was answered")

    async def _extend(self, program: Program, box: Box, leaves: float | None) -> None:
        action = ExtendSandbox(sandbox=box.id, ttl_seconds=300 + self.chance.random() * 300)
        box.was_extended = True
        await program.ask(action, leaves_after=leaves)

    async def _snapshot(self, program: Program, box: Box, leaves: float | None) -> None:
        told = msgspec.json.decode(await program.ask(CreateSnapshot(sandbox=box.id), leaves_after=leaves))
        box.snapshots.append(told["id"])

    async def _fork(self, program: Program, box: Box, number: int, leaves: float | None) -> None:
        count, ttl = 1 + int(self.chance.random() * 2), HOUR + number / 1024
        self.forkers.setdefault(box.id, set()).add(program)
        self.forks[ttl] = count
        action = ForkSandbox(sandbox=box.id, count=count, ttl_seconds=ttl)
        told = msgspec.json.decode(await program.ask(action, leaves_after=leaves))
        if len(told) != count:
            self.world.violate(f"a fork of {count} made {len(told)}")
        for one in told:
            self._owns(program, self.boxes.setdefault(one["id"], Box(one["id"], persistent=box.persistent)))

    async def _rollback(self, program: Program, box: Box, snapshots: list[str], leaves: float | None) -> None:
        chosen = box.snapshots[-1] if box.snapshots and self.world.likely(0.8) else snapshots[0]
        box.rollbacks += 1
        box.rolling += 1
        box.writes.clear()
        if box.task is not None:
            box.task.writes.clear()
        lost = True
        try:
            await program.ask(RollbackSandbox(sandbox=box.id, snapshot=chosen), leaves_after=leaves)
            lost = False
        except (DaemonLostError, InternalError):
            raise
        except PaddockError:
            lost = False  # it has ended with this, unless its caller left
            raise
        finally:
            if not lost and leaves is None:
                box.rolling -= 1

    # What must be true

    async def _quiet(self) -> None:
        """No fault any more, and time enough for two sweeps."""
        world = self.world
        world.note("quiet")
        self.calm, world.dies_after = True, -1
        world.failures, world.disk_is_full, world.supervisor.is_away = 0.0, False, False
        if self.deaths == 0 and self.daemon is not None and world.likely(0.3):
            self.daemon_dies()
        observer = Program(self, 99)
        await asyncio.sleep(max(self.period, 30.0) + 15)
        rows = await self._look(observer)
        for row in rows:
            if row["state"] not in ("running", "paused", "creating", "restoring"):
                continue
            call = RunExec(sandbox=row["id"], spec=ExecSpec(argv=(f"q{row['id']}", "0")))
            began = world.loop.time()
            try:
                await observer.ask(call)
            except PaddockError as error:
                now = {one["id"]: one for one in await self._look(observer)}
                if now[row["id"]]["state"] not in ("killed", "failed"):
                    world.violate(f"{row['id']} cannot be used: {type(error).__name__}: {error}")
            if world.loop.time() - began > PATIENT_SECONDS:
                world.violate(f"a use of {row['id']} took {world.loop.time() - began:.0f} s")
        # The daemon may have started for the look above.
        await asyncio.sleep(max(self.period + 15, self.started_at + UNCLAIMED_SECONDS - world.loop.time()))
        self.looked = world.loop.time()
        check(self, await self._look(observer))

    async def _look(self, observer: Program) -> list[dict[str, Any]]:
        for _ in range(3):
            try:
                return msgspec.json.decode(await observer.ask(ListSandboxes(ended=True)))
            except DaemonLostError:
                continue
        raise Violation("no daemon answers")


def play(history: History) -> World:
    """To its end. Its violations are in the world."""
    world = history.world
    try:
        world.loop.run(history.play())
    except Stuck:
        world.violate(f"nobody goes on, and these wait: {sorted(history.under_way.items())}")
        for line in _stacks(world):
            world.note(line)
    except Endless as error:
        world.violate(str(error))
    except Exception:
        world.violate(traceback.format_exc())
    return world


def _stacks(world: World) -> list[str]:
    lines: list[str] = []
    for task in world.loop.kept:
        if isinstance(task, asyncio.Task) and not task.done() and task.get_coro() is not None:
            lines.append(f"-- {task.get_name()}")
            coroutine: Any = task.get_coro()
            while coroutine is not None:
                frame = getattr(coroutine, "cr_frame", None) or getattr(coroutine, "ag_frame", None)
                if frame is not None:
                    lines.append(
                        f"   {frame.f_code.co_filename.rsplit('/', 1)[-1]}:{frame.f_lineno} {frame.f_code.co_name}"
                    )
                coroutine = getattr(coroutine, "cr_await", None) or getattr(coroutine, "ag_await", None)
    return lines
