"""What outlives a daemon: the disk, the pool, the supervisor with its sandboxes, the gateway. And what goes wrong.

Everything that the daemon does to the world goes through `World.effect`, which refuses the effects of a dead daemon and
is where one may die. What must never be done at all is a `Violation`, found at the moment it is done.
"""

from __future__ import annotations

import asyncio
import random
import sqlite3
from collections.abc import AsyncGenerator, Callable, Generator, Mapping, Sequence
from contextlib import asynccontextmanager, closing, contextmanager
from contextvars import Context, copy_context
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from paddock.audit import AuditLog
from paddock.backends.base import Backend, BackendState, Capabilities, Ending, KeptExec, Paused, SandboxPlan
from paddock.backends.pause_clock import PauseClock
from paddock.daemon.clock import Clock
from paddock.daemon.store.database import Store
from paddock.errors import (
    AlreadyExistsError,
    FileError,
    GatewayUnavailableError,
    NotFoundError,
    PaddockError,
    ResourceExhaustedError,
    SandboxDiedError,
    SupervisorUnavailableError,
    UnrecordedError,
)
from paddock.gateway.control import Open, Order, Revise
from paddock.model import (
    Check,
    ExecId,
    ExecInfo,
    ExecSpec,
    ExitStatus,
    Level,
    Limit,
    Process,
    PtySize,
    SandboxId,
    Template,
    Usage,
    User,
)
from tests.stand_ins import WithoutDisk, info_of

from .event_loop import START, WORLD, SimulatedLoop, generation

FREEZE_SECONDS = 30.0


class DaemonDied(BaseException):
    """An effect of a daemon that is dead: it never happened."""


class Violation(AssertionError):
    """A promise was broken."""


class Tree:
    """A tree of the pool. `torn`: it was copied from one whose sandbox ran meanwhile."""

    __slots__ = ("torn", "writes")

    def __init__(self, writes: frozenset[str] = frozenset(), torn: bool = False) -> None:
        self.writes, self.torn = writes, torn


class World:
    def __init__(self, seed: str, *, keeps_trace: bool) -> None:
        self.seed, self._keeps_trace = seed, keeps_trace
        self.chance = random.Random(seed)
        self.loop = SimulatedLoop(self.chance)
        self.loop.stepped = self._stepped
        self.loop.failed = self.failed
        self.generation = 0
        self.dies_after = -1
        """The daemon dies when it has done so many more steps and effects. Negative: it lives on."""
        self.died: Callable[[], None] = lambda: None
        self.violations: list[str] = []
        self._noted: list[tuple[float, tuple[object, ...]]] = []
        self.suspended = 0.0
        """Seconds for which the machine has slept."""
        self.wall_offset = 1_790_000_000.0
        self.disk_is_full = False
        self.failures = 0.0
        """How likely a request to the supervisor fails."""
        self.disk = Disk(self)
        self.trees: dict[str, Tree] = {"tp_host": Tree()}
        self.supervisor = Supervisor(self)
        self.gateway = Gateway(self)
        self.processes: set[int] = set()
        self.events: list[tuple[str, dict[str, Any]]] = []
        """What was recorded."""
        self.begun: set[str] = set()
        """Commands, by what their callers named them."""

    def note(self, *words: object) -> None:
        if self._keeps_trace:
            self._noted.append((self.loop.time(), words))

    @property
    def trace(self) -> list[str]:
        return [" ".join((f"{at - START:.6f}", *map(str, words))) for at, words in self._noted]

    def violate(self, promise: str) -> None:
        self.note("VIOLATION", promise)
        self.violations.append(promise)

    def failed(self, message: str, error: BaseException | None) -> None:
        if isinstance(error, DaemonDied) or (self.disk_is_full and isinstance(error, PaddockError)):
            return  # what could not be recorded either is for the log
        self.violate(f"{message}: {type(error).__name__}: {error}")

    def wall(self) -> float:
        return self.wall_offset + self.boottime()

    def boottime(self) -> float:
        return self.loop.time() + self.suspended

    def is_acting(self) -> bool:
        """Whether the code that runs is a daemon's, and that one lives."""
        return not self.loop.closed and generation.get() in (WORLD, self.loop.alive)

    def effect(self, *what: object) -> None:
        self.check_alive()
        if generation.get() != WORLD:
            self._count()
            self.check_alive()
        self.note(*what)

    def check_alive(self) -> None:
        if not self.is_acting():
            raise DaemonDied

    def _stepped(self, of: int) -> None:
        self._count()

    def _count(self) -> None:
        if self.dies_after >= 0:
            self.dies_after -= 1
            if self.dies_after < 0:
                self.died()

    def seconds(self) -> float:
        """How long something outside takes."""
        drawn = self.chance.random()
        return 0.0 if drawn < 0.6 else drawn * 0.05 if drawn < 0.95 else drawn * 4

    def likely(self, probability: float) -> bool:
        return self.chance.random() < probability

    def sleep(self, seconds: float) -> None:
        """The machine: its clocks go on, and no process does."""
        self.note("the machine sleeps for", round(seconds))
        self.suspended += seconds
        self.supervisor.keep_time()


class Disk:
    """The database, which survives, and how full it is."""

    def __init__(self, world: World) -> None:
        self.world, self.db = world, _fresh_database()

    def execute(self, sql: str, values: Sequence[object] | Mapping[str, object] = ()) -> sqlite3.Cursor:
        if sql.startswith("SELECT"):
            self.world.check_alive()
        elif sql.startswith(("ROLLBACK", "BEGIN")):
            if sql == "BEGIN IMMEDIATE":
                self.world.check_alive()
        else:
            told = (values["id"],) if isinstance(values, Mapping) else (*values[:1], *values[-1:])
            self.world.effect("write", sql[:24], *told)
            if self.world.disk_is_full and sql != "COMMIT":
                error = sqlite3.OperationalError("database or disk is full")
                error.sqlite_errorname = "SQLITE_FULL"
                raise error
        return self.db.execute(sql, values)

    @property
    def total_changes(self) -> int:
        return self.db.total_changes

    def roll_back(self) -> None:
        if self.db.in_transaction:
            self.db.execute("ROLLBACK")

    def close(self) -> None:
        pass


_database: list[sqlite3.Connection] = []
"""One for all histories: its statements stay prepared."""


def _fresh_database() -> sqlite3.Connection:
    if not _database:
        with TemporaryDirectory() as directory:
            path = Path(directory) / "paddock.db"
            Store(path).close()
            with closing(sqlite3.connect(path)) as db:
                db.execute("PRAGMA journal_mode = DELETE")
                content = db.serialize()
        db = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False, cached_statements=1000)
        db.deserialize(content)
        db.execute("PRAGMA synchronous = OFF")
        _database.append(db)
    (db,) = _database
    if db.in_transaction:
        db.execute("ROLLBACK")
    for (table,) in db.execute("SELECT name FROM sqlite_schema WHERE type = 'table'").fetchall():
        db.execute(f"DELETE FROM {table}")
    return db


class SimulatedStore(Store):
    """`Store` over the world's disk."""

    def __init__(self, world: World) -> None:
        self.path, self._clock = Path("/simulated"), Clock(world.wall, world.boottime)
        self._world = world
        world.disk.roll_back()
        self._db: Any = world.disk
        self._rows, self._living, self._written = {}, None, 0

    def checkpoint(self) -> None:
        self._world.check_alive()

    def close(self) -> None:
        pass


class SimulatedAudit(AuditLog):
    """Records in memory; a full disk keeps room for ends, as the real one."""

    def __init__(self, world: World) -> None:
        self.directory = Path("/nonexistent/audit")
        self.hide = lambda argv: argv
        self._world, self._closed, self._number = world, False, 0

    def _append(self, kind: str, action: str, **fields: Any) -> int:
        self._world.effect("record", kind, action, fields.get("sandbox"))
        if self._closed:
            raise UnrecordedError("the audit log is closed")
        if self._world.disk_is_full and action not in ("sandbox.kill", "sandbox.ended"):
            raise UnrecordedError("the audit log cannot be written: the disk is full")
        self._world.events.append((action, {"kind": kind, "generation": generation.get(), **fields}))
        self._number += 1
        return self._number

    def decision(self, principal: Any, action: Any, verdict: Any) -> int:
        return self._append("decision", action.TAG, sandbox=getattr(action, "sandbox", None), allowed=verdict.allowed)

    def close(self) -> None:
        self._closed = True


class SimulatedPool(WithoutDisk):
    """Trees as sets of what was written into them."""

    driver, overlay = "btrfs", True

    def __init__(self, world: World) -> None:
        self._world, self._trees = world, world.trees

    def _change(self, what: str, *names: str, room: bool = False) -> None:
        self._world.effect("pool", what, *names)
        if room and self._world.disk_is_full:
            raise ResourceExhaustedError("the pool is full")

    def _known(self, name: str) -> Tree:
        if name not in self._trees:
            raise NotFoundError(f"no tree {name!r}")
        return self._trees[name]

    def _new(self, name: str, tree: Tree) -> None:
        if name in self._trees:
            raise AlreadyExistsError(f"tree {name!r} is there")
        self._trees[name] = tree

    def _moves(self, name: str) -> None:
        place = self._world.supervisor.writer(name)
        if place is not None and not place.is_to_die and place.made_by == generation.get():
            self._world.violate(f"the tree {name} is taken away while {place.plan.id} lives")

    def create(
        self, name: str, *, layers: tuple[str, ...] = (), limit_bytes: int | None = None, mounts: int = 0
    ) -> None:
        self._change("create", name, room=True)
        self._new(name, Tree())

    def snapshot(
        self, source: str, name: str, *, limit_bytes: int | None = None, at_rest: bool = False, ours: bool = False
    ) -> None:
        self._change("snapshot", source, name, room=True)
        of, place = self._known(source), self._world.supervisor.writer(source)
        torn = of.torn or (place is not None and place.moves())
        self._new(name, Tree(of.writes, torn))

    def derive(self, source: str, name: str, *, limit_bytes: int | None = None) -> tuple[str, ...]:
        self.snapshot(source, name)
        return ()

    def rename(self, source: str, name: str, *, limit_bytes: int | None = None) -> None:
        self._change("rename", source, name)
        tree = self._known(source)
        self._moves(source)
        self._new(name, tree)
        del self._trees[source]

    def exchange(self, one: str, other: str) -> None:
        self._change("exchange", one, other)
        mine, theirs = self._known(one), self._known(other)
        self._moves(one)
        self._moves(other)
        self._trees[one], self._trees[other] = theirs, mine

    def delete(self, name: str) -> None:
        self._change("delete", name)
        if name in self._trees:
            self._moves(name)
            del self._trees[name]

    def names(self) -> tuple[str, ...]:
        self._world.check_alive()
        return tuple(sorted(self._trees))

    def open(self, name: str) -> int:
        raise NotImplementedError

    def measure(self, name: str) -> int:
        self._known(name)
        return 0

    def add_mounts(self, name: str, mounts: int) -> None: ...


class Place:
    """One sandbox as the supervisor has it. Its TTL stands still while it is paused."""

    def __init__(self, supervisor: Supervisor, plan: SandboxPlan, made_by: int) -> None:
        self.plan, self.made_by, self._supervisor = plan, made_by, supervisor
        self.world = supervisor.world
        self.commands: dict[str, Command] = {}
        self.awake: set[object] = set()
        self.freezes: dict[int, float] = {}
        self.paused, self.deadline = False, plan.deadline
        self.left: float | None = None
        self.used = self.world.boottime()
        self.changed, self._since = self.world.loop.time(), self.used
        self.ended: Ending | None = None
        self.is_to_die = False
        self.instances: list[Instance] = []

    @property
    def written(self) -> tuple[str, ...]:
        """The names of the trees that its commands write: its own, and its workspace."""
        return self.plan.tree, *(tree.tree for tree in self.plan.trees if tree.writable)

    def moves(self) -> bool:
        """Whether a process of it can run."""
        return self.ended is None and not self.paused and not self.freezes

    def pause(self, told: float = 0.0) -> None:
        if self.paused or self.ended is not None:
            return
        now = self.world.boottime()
        self.world.note("stands still", self.plan.id)
        self.left, self.deadline = self.deadline - now, now + self.plan.retention_seconds
        self._count()
        self.paused = True
        self._shift()
        self._tell(lambda instance: instance.pause_clock.begin())
        self._supervisor.wake_at(self)

    def resume(self) -> None:
        if self.paused and self.ended is None:
            assert self.left is not None
            self.world.note("goes on", self.plan.id)
            self.deadline, self.left = self.world.boottime() + self.left, None
            self.paused, self.used = False, self.world.boottime()
            self._since = self.used
            self._shift()
            self._tell(lambda instance: instance.pause_clock.end())
            self._supervisor.wake_at(self)

    def freeze(self, hold: int) -> None:
        self.freezes[hold] = self.world.loop.time()
        self._shift()
        self.world.loop.outside(FREEZE_SECONDS, self.thaw, hold)

    def thaw(self, hold: int) -> bool:
        held = self.freezes.pop(hold, None) is not None
        self._shift()
        return held and self.ended is None

    def end(self, ending: Ending) -> None:
        if self.ended is not None:
            return
        self.world.note("ends", self.plan.id, ending.reason)
        self._count()
        self.ended, self.changed = ending, self.world.loop.time()
        for command in self.commands.values():
            command.end(ExitStatus(signal=9))
        self._tell(lambda instance: instance.pause_clock.end())
        for instance in self.instances:
            instance.hear_of_the_end()
        self.world.gateway.has_ended(self)

    def _count(self) -> None:
        """For how long it has run, by the clock that its TTL goes by."""
        if not self.paused:
            ran = self._supervisor.ran
            ran[self.plan.id] = ran.get(self.plan.id, 0.0) + self.world.boottime() - self._since

    def release(self, alive: int) -> None:
        """The connection of a daemon has ended."""
        for hold in tuple(self.freezes):
            self.thaw(hold)
        self.awake.clear()
        self.instances.clear()
        for command in self.commands.values():
            if not command.background:
                command.end(ExitStatus(signal=9))

    def _shift(self) -> None:
        self.changed = self.world.loop.time()
        for command in self.commands.values():
            command.shift()

    def _tell(self, what: Callable[[Instance], None]) -> None:
        for instance in self.instances:
            if instance.of == self.world.loop.alive:
                what(instance)


class Command:
    """An ExecHandle, and the command itself: it makes progress while its sandbox runs."""

    stdin = stdout = stderr = None

    def __init__(self, place: Place, id: ExecId, spec: ExecSpec, background: bool) -> None:
        self.place, self.id, self.spec, self.background = place, id, spec, background
        self.world = place.world
        self.left = float(spec.argv[1])
        self.writes = spec.argv[2] if len(spec.argv) > 2 else None
        self.pid, self.started_at = 1000 + len(place.commands), self.world.wall()
        self.status: ExitStatus | None = None
        self._since: float | None = None
        self._timer: Any = None
        self._waiting: list[asyncio.Future[None]] = []
        self.shift()

    def shift(self) -> None:
        """Its sandbox stops, or goes on."""
        runs, now = self.place.moves() and self.status is None, self.world.loop.time()
        if self._since is not None and not runs:
            self.left -= now - self._since
            self._since = None
            self._timer.cancel()
        elif self._since is None and runs:
            self._since = now
            self._timer = self.world.loop.outside(max(0.0, self.left), self._done)

    def _done(self) -> None:
        if self.status is None and self.place.moves():
            if self.writes is not None:
                self.world.note("writes", self.place.plan.id, self.writes)
                for name in self.place.written:
                    if (tree := self.world.trees.get(name)) is not None:
                        tree.writes |= {self.writes}
            self.end(ExitStatus(code=0))

    def end(self, status: ExitStatus) -> None:
        if self.status is None:
            self.status = status
            if self._timer is not None:
                self._timer.cancel()
            waiting, self._waiting = self._waiting, []
            for one in waiting:
                self.world.loop.outside(self.world.seconds(), lambda one=one: one.done() or one.set_result(None))

    async def keep(self, timeout_seconds: float | None) -> None: ...

    async def feed(self, data: bytes) -> None: ...

    async def leave(self) -> None:
        await self.aclose()

    async def wait(self) -> ExitStatus:
        self.world.check_alive()
        if self.status is None:
            told = self.world.loop.create_future()
            self._waiting.append(told)
            await told
        assert self.status is not None
        if self.place.ended is not None and self.status.signal == 9 and self.world.likely(0.5):
            raise SandboxDiedError(f"{self.place.plan.id} is dead")
        return self.status

    async def signal(self, number: int) -> None:
        await self.place._supervisor.ask("signal", self.place.plan.id, lambda: self.end(ExitStatus(signal=number)))

    async def kill(self) -> None:
        await self.signal(9)

    async def resize(self, size: PtySize) -> None: ...

    async def aclose(self) -> None:
        if not self.background and self.status is None:
            self.world.effect("close command", self.id)
            self.end(ExitStatus(signal=9))
            await asyncio.sleep(0)


class Supervisor:
    """The parent of all sandboxes. It keeps each end until it is told to forget it, and lives on when a daemon dies.

    `is_away`: it is dead, and cannot be started. What runs, runs on.
    """

    def __init__(self, world: World) -> None:
        self.world = world
        self.places: dict[SandboxId, Place] = {}
        self.is_away = False
        self.life = 0
        self._requests: list[tuple[asyncio.Future[Any], list[Any]]] = []
        self._sent: dict[Callable[[], None], int] = {}
        self._answers: dict[str, float] = {}
        self._busy: dict[str, list[tuple[int, asyncio.Task[Any] | None, str]]] = {}
        self.holds = 0
        self.ran: dict[str, float] = {}

    async def ask(
        self, what: str, id: str, act: Callable[[], Any], undo: Callable[[], None] = lambda: None, late: bool = True
    ) -> Any:
        """Send a request, and wait for the answer. It may be done although its daemon is dead by then."""
        world, mine, life = self.world, generation.get(), self.life
        world.effect("ask", what, id)
        if self.is_away:
            raise SupervisorUnavailableError("the supervisor does not answer")
        if world.failures and world.likely(world.failures):
            raise SupervisorUnavailableError("the supervisor went away", unheard=True)
        answer: asyncio.Future[Any] = world.loop.create_future()
        request: list[Any] = [True]
        outlives = late and world.likely(0.3)

        def arrive() -> None:
            if (
                self._sent.pop(arrive, None) is None
                or not request[0]
                or life != self.life
                or (mine != world.loop.alive and not outlives)
            ):
                return
            if mine == world.loop.alive:  # what a dead daemon had sent was there before this one connected
                for before in [before for before, of in self._sent.items() if of != mine]:
                    before()
            world.note("does", what, id)
            try:
                result, error = act(), None
            except Exception as raised:
                result, error = None, raised
            # What was done to one sandbox is heard of in its order.
            at = self._answers[id] = max(self._answers.get(id, 0.0) + 1e-9, world.loop.time() + world.seconds())
            world.loop.call_at(at, deliver, result, error, context=Context())

        def deliver(result: Any, error: Exception | None) -> None:
            if not answer.done():
                if error is None:
                    answer.set_result(result)
                else:
                    answer.set_exception(error)

        self._sent[arrive] = mine
        world.loop.outside(world.seconds(), arrive)
        self._requests.append((answer, request))
        try:
            return await answer
        except asyncio.CancelledError:
            if world.is_acting():
                request[0] = False
                undo()
            raise

    @contextmanager
    def busy(self, id: str, verb: str) -> Generator[None]:
        """Verbs that exclude each other: found out if those of two tasks overlap."""
        mine, now = (generation.get(), asyncio.current_task(), verb), self._busy.setdefault(id, [])
        for of, task, other in now:
            if of == mine[0] and task is not mine[1] and not (verb == other and verb in ("start", "resume")):
                self.world.violate(f"{verb} of {id} overlaps {other}")
        now.append(mine)
        try:
            yield
        finally:
            now.remove(mine)

    def writer(self, tree: str) -> Place | None:
        """The living sandbox that has this tree."""
        living = (place for place in self.places.values() if place.ended is None)
        return next((place for place in living if tree in place.written), None)

    def die(self) -> None:
        """It starts again at the next request. Who waits for an answer gets none."""
        self.world.note("the supervisor dies")
        self.life += 1
        requests, self._requests = self._requests, []
        for answer, _ in requests:
            if not answer.done():
                answer.set_exception(
                    SupervisorUnavailableError("the supervisor went away before it answered", lost=True)
                )
        for place in self.places.values():
            for hold in tuple(place.freezes):
                place.thaw(hold)
            for instance in place.instances:
                if self.world.likely(0.3):
                    instance.lose()

    def daemon_died(self) -> None:
        self._requests.clear()
        self._busy.clear()
        for place in self.places.values():
            place.release(self.world.loop.alive)

    def wake_at(self, place: Place) -> None:
        """When the time of it is over."""
        after = max(0.0, place.deadline - self.world.boottime())
        self.world.loop.outside(after, self._look, place)
        if place.plan.spec.idle_seconds is not None:
            self.world.loop.outside(place.plan.spec.idle_seconds, self._idle, place)

    def keep_time(self) -> None:
        for place in tuple(self.places.values()):
            self._look(place)

    def _look(self, place: Place) -> None:
        if place.ended is None and self.world.boottime() >= place.deadline - 1e-6:
            limit, why = (
                (Limit.RETENTION, "it was paused too long") if place.paused else (Limit.TTL, "its time is over")
            )
            place.end(Ending(limit=limit, reason=why))

    def _idle(self, place: Place) -> None:
        idle = place.plan.spec.idle_seconds
        if idle is None or place.ended is not None or place.paused:
            return
        left = place.used + idle - self.world.boottime()
        if place.awake or left > 0:
            self.world.loop.outside(max(left, idle / 2), self._idle, place)
        else:
            place.pause()


class Instance:
    """The daemon's view of a place."""

    def __init__(self, place: Place) -> None:
        self.place, self.of, self._supervisor = place, generation.get(), place._supervisor
        self.world = place.world
        self.pause_clock = PauseClock()
        if place.paused:
            self.pause_clock.begin()
        self._over: asyncio.Future[Ending] | None = None
        self._lost = False
        place.instances.append(self)

    @property
    def id(self) -> SandboxId:
        return self.place.plan.id

    @property
    def template(self) -> Template:
        return self.place.plan.template

    async def user(self, name: str | None) -> User:
        user = self.template.user(name)
        if user is None:
            raise NotFoundError(f"no user {name!r}")
        return user

    def _living(self) -> Place:
        if self.place.ended is not None or self._supervisor.places.get(self.id) is not self.place:
            raise SandboxDiedError(f"{self.id} is dead")
        return self.place

    async def _ask(self, what: str, act: Callable[[Place], Any], undo: Callable[[], None] = lambda: None) -> Any:
        return await self._supervisor.ask(what, self.id, lambda: act(self._living()), undo)

    @asynccontextmanager
    async def frozen(self) -> AsyncGenerator[None]:
        self._supervisor.holds += 1
        hold = self._supervisor.holds
        with self._supervisor.busy(self.id, "freeze"):
            await self._ask("freeze", lambda place: place.freeze(hold), lambda: self.place.thaw(hold) and None)
            try:
                yield
            finally:
                self.world.check_alive()
                thawing = asyncio.ensure_future(
                    self._supervisor.ask("thaw", self.id, lambda: self.place.thaw(hold), late=False)
                )
                held = await asyncio.shield(thawing)
            if not held:
                raise SupervisorUnavailableError(f"{self.id} did not stand still for as long as it took", lost=True)

    async def pause(self) -> Paused:
        def act(place: Place) -> Paused:
            place.pause()
            return Paused(place.left, place.deadline)

        with self._supervisor.busy(self.id, "pause"):
            return await self._ask("pause", act)

    async def resume(self) -> float:
        def act(place: Place) -> float:
            place.resume()
            return place.deadline

        with self._supervisor.busy(self.id, "resume"):
            return await self._ask("resume", act)

    async def stay_awake(self) -> Callable[[], None]:
        hold = object()

        def act(place: Place) -> None:
            place.awake.add(hold)
            place.resume()

        def rest() -> None:
            if self.world.is_acting() and self.of == self.world.loop.alive:
                self.place.awake.discard(hold)
                self.place.used = self.world.boottime()

        await self._ask("awake", act, rest)
        return rest

    async def start(self, spec: ExecSpec, *, id: ExecId, background: bool) -> Command:
        def act(place: Place) -> Command:
            self.world.note("starts", place.plan.id, *spec.argv)
            if spec.argv[0] in self.world.begun:
                self.world.violate(f"command {spec.argv[0]} was started twice")
            self.world.begun.add(spec.argv[0])
            command = place.commands[id] = Command(place, id, spec, background)
            return command

        with self._supervisor.busy(self.id, "start"):
            return await self._ask("start", act)

    async def take_up(self, exec: ExecId) -> Command:
        raise NotFoundError(f"nothing is kept of {exec}")

    async def attach(self, exec: ExecId) -> Command:
        def act(place: Place) -> Command:
            if exec not in place.commands:
                raise NotFoundError(f"no exec {exec}")
            return place.commands[exec]

        return await self._ask("attach", act)

    async def output(self, exec: ExecId, stream: int) -> Any:
        raise NotFoundError(f"no background command {exec}")

    async def accept(self, path: str) -> Any:
        raise FileError(f"nothing comes to {path} in here")

    async def file(self, action: Any) -> Any:
        raise NotImplementedError

    async def processes(self) -> tuple[Process, ...]:
        return await self._ask("processes", lambda _: ())

    async def posture(self) -> tuple[Check, ...]:
        return await self._ask("posture", lambda _: ())

    async def execs(self) -> tuple[ExecInfo, ...]:
        return await self._ask("execs", lambda place: tuple(map(info_of, place.commands.values())))

    async def signal_exec(self, exec: ExecId, number: int) -> None:
        await (await self.attach(exec)).signal(number)

    async def set_deadline(self, deadline: float) -> None:
        def act(place: Place) -> None:
            place.deadline = deadline
            self._supervisor.wake_at(place)

        await self._ask("deadline", act)

    async def usage(self) -> Usage:
        return await self._ask("usage", lambda _: Usage(disk_bytes=0))

    def strikes(self) -> dict[Limit, int]:
        return {}

    async def kill(self) -> None:
        self.place.is_to_die = True
        await self._supervisor.ask("kill", self.id, lambda: self.place.end(Ending(limit=None, reason="killed")))

    async def wait_ended(self) -> Ending:
        if self.place.ended is not None:
            return self.place.ended
        self._over = self.world.loop.create_future()
        return await self._over

    def hear_of_the_end(self) -> None:
        over = self._over
        if over is not None:
            self.world.loop.outside(self.world.seconds(), lambda: over.done() or over.set_result(self.place.ended))

    def lose(self) -> None:
        if self._over is not None and not self._over.done():
            self._over.set_exception(SupervisorUnavailableError("the connection was lost"))

    async def aclose(self) -> None:
        self.world.check_alive()


class SimulatedExits:
    first = (1, 1)

    def detach(self) -> tuple[int, ...]:
        return ()


class SimulatedBackend:
    name, level, spares = "jail", Level.JAIL, None
    capabilities = Capabilities(
        isolation=True, adopt=True, freeze=True, memory=True, pause=True, idle=True, trees=True, exits=True
    )

    def __init__(self, world: World) -> None:
        self._world, self._supervisor = world, world.supervisor

    def probe(self) -> str | None:
        self._world.check_alive()
        return "the supervisor cannot be started" if self._supervisor.is_away else None

    def checks(self) -> tuple[Check, ...]:
        return ()

    async def exits(self, id: SandboxId, instance_id: int, *, make: bool = False) -> Any:
        def act() -> SimulatedExits:
            place = self._supervisor.places.get(id)
            if place is None or place.ended is not None or place.plan.instance_id != instance_id:
                raise SandboxDiedError(f"{id} is dead")
            return SimulatedExits()

        return await self._supervisor.ask("exits", id, act)

    async def create(self, plan: SandboxPlan) -> Instance:
        places, mine = self._supervisor.places, generation.get()

        def act() -> Place:
            before = places.get(plan.id)
            if before is not None and before.ended is None:
                if before.made_by == mine:
                    self._world.violate(f"{plan.id} is made twice: {before.plan.instance_id} and {plan.instance_id}")
                # One of the two is what a daemon that died had asked for: it is refused, or in the way.
                raise AlreadyExistsError(f"{plan.id} lives")
            place = Place(self._supervisor, plan, mine)
            for name in place.written:
                if name not in self._world.trees:
                    raise SandboxDiedError(f"{plan.id} has no tree {name}")
                other = self._supervisor.writer(name)
                if other is not None and other.made_by == mine:
                    self._world.violate(f"{plan.id} and {other.plan.id} write the tree {name}")
            places[plan.id] = place
            self._supervisor.wake_at(place)
            return place

        def undo() -> None:
            place = places.get(plan.id)
            if place is not None and place.plan is plan:
                place.end(Ending(limit=None, reason="its create was given up"))
                del places[plan.id]

        with self._supervisor.busy(plan.id, "create"):
            try:
                return Instance(await self._supervisor.ask("create", plan.id, act, undo))
            except SupervisorUnavailableError:
                undo()
                raise

    async def adopt(self, id: SandboxId) -> Instance | None:
        def act() -> Place | None:
            place = self._supervisor.places.get(id)
            return None if place is None or place.ended is not None else place

        place = await self._supervisor.ask("adopt", id, act)
        return None if place is None or place.ended is not None else Instance(place)

    async def state(self) -> BackendState:
        def act() -> BackendState:
            places = self._supervisor.places.items()
            paused = {i: Paused(p.left, p.deadline) for i, p in places if p.paused and p.ended is None}
            return BackendState({id: place.ended for id, place in places}, paused)

        return await self._supervisor.ask("list", "", act)

    async def kept(self) -> Mapping[ExecId, KeptExec]:
        return {}

    async def forget(self, id: SandboxId) -> None:
        def act() -> None:
            place = self._supervisor.places.get(id)
            if place is not None and place.ended is not None:
                del self._supervisor.places[id]

        await self._supervisor.ask("forget", id, act)

    async def aclose(self) -> None: ...


_: type[Backend] = SimulatedBackend


class Gateway:
    """The rules that hold, by sandbox: it lives on when a daemon dies, and forgets all when it dies itself."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.lives = False
        self.life = 0
        self.doors: dict[str, tuple[int, bytes]] = {}
        self.client: SimulatedGatewayClient | None = None
        """The one that it follows: orders of the one before count no more."""

    def die(self) -> None:
        self.world.note("the gateway dies")
        self.lives, self.life = False, self.life + 1
        self.doors.clear()
        client, self.client = self.client, None
        if client is not None:
            client.lose()

    def has_ended(self, place: Place) -> None:
        """It sees for itself."""

        def look() -> None:
            door = self.doors.get(place.plan.id)
            if door is not None and door[0] == place.plan.instance_id:
                del self.doors[place.plan.id]

        self.world.loop.outside(self.world.seconds(), look)

    def obey(self, order: Order) -> bytes:
        door = self.doors.get(order.sandbox)
        match order:
            case Open():
                self.doors[order.sandbox] = (order.instance_id, order.snapshot)
                place = self.world.supervisor.places.get(SandboxId(order.sandbox))
                if place is None or place.ended is not None:  # its pidfd tells
                    del self.doors[order.sandbox]
            case Revise():
                if door is None or door[0] != order.instance_id:
                    raise NotFoundError(f"no door of {order.sandbox}")
                self.doors[order.sandbox] = (order.instance_id, order.snapshot)
            case _:
                pass
        return b""


class SimulatedGatewayClient:
    """As `GatewayClient`, to the world's gateway."""

    world: World
    """Set for each history."""

    def __init__(self, state_dir: Path, *, on_lost: Callable[[], None], approve: object) -> None:
        self._on_lost, self._life, self._of = on_lost, -1, generation.get()
        self._requests: list[asyncio.Future[bytes]] = []
        self._context: Any = None

    async def connect(self, *, start: bool = True) -> bool:
        gateway = self.world.gateway
        if gateway.lives and self._life == gateway.life:
            return True
        self.world.effect("connect to the gateway", start)
        if not gateway.lives and not start:
            return False
        await asyncio.sleep(self.world.seconds())
        if not gateway.lives:
            self.world.note("the gateway starts")
            gateway.lives, gateway.life = True, gateway.life + 1
        self._life, self._of = gateway.life, generation.get()
        gateway.client = self
        self._context = copy_context()
        return True

    async def order(self, order: Order, descriptors: tuple[int, ...] = ()) -> bytes:
        await self.connect()
        world, gateway, life = self.world, self.world.gateway, self._life
        world.effect("order", type(order).__name__, order.sandbox, order.instance_id)
        answer: asyncio.Future[bytes] = world.loop.create_future()
        self._requests.append(answer)

        def arrive() -> None:
            if life != gateway.life or not gateway.lives or gateway.client is not self:
                return
            world.note("gateway", type(order).__name__, order.sandbox, order.instance_id)
            try:
                gateway.obey(order)
            except NotFoundError as error:
                world.loop.outside(world.seconds(), lambda error=error: answer.done() or answer.set_exception(error))
            else:
                world.loop.outside(world.seconds(), lambda: answer.done() or answer.set_result(b""))

        if life != gateway.life or not gateway.lives:
            raise GatewayUnavailableError("the gateway went away")
        # One connection: orders arrive in their order.
        self._last = max(getattr(self, "_last", 0.0), world.loop.time() + world.seconds()) + 1e-9
        world.loop.call_at(self._last, arrive, context=Context())
        return await answer

    def lose(self) -> None:
        if self._of != self.world.loop.alive:  # its daemon is dead
            return
        requests, self._requests = self._requests, []
        for answer in requests:
            if not answer.done():
                answer.set_exception(GatewayUnavailableError("the gateway went away"))
        self.world.loop.outside(0.0, self._on_lost, context=self._context)

    def close(self) -> None:
        if self.world.gateway.client is self:
            self.world.gateway.client = None
