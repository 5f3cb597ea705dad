"""A small real backend for the tests of the door: host processes without walls, in a world that outlives services.

A `World` plays the supervisor: one service after the other, each with a `WorldBackend` of its own, finds the same
instances in it.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

from paddock.backends.base import (
    Backend,
    BackendState,
    Capabilities,
    Ending,
    Exits,
    KeptExec,
    Paused,
    SandboxPlan,
    SpareStock,
)
from paddock.backends.pause_clock import PauseClock
from paddock.daemon.main.recovery import PERIOD_SECONDS
from paddock.daemon.main.service import Service
from paddock.errors import AlreadyExistsError, FileError, NotFoundError, ProgramNotFoundError, SandboxDiedError
from paddock.linux import proc
from paddock.model import (
    ByteStream,
    Check,
    ExecId,
    ExecInfo,
    ExecSpec,
    ExitStatus,
    FileInfo,
    FileKind,
    Level,
    Limit,
    Principal,
    Process,
    PtySize,
    ReadFile,
    SandboxId,
    State,
    StatFile,
    Template,
    Usage,
    User,
    WriteFile,
)
from paddock.model.caller import SESSION
from paddock.policy import local_policy
from paddock.storage.pool.worker import Worker
from tests.stand_ins import OneTemplate, WithoutDisk, info_of

ME = Principal(f"local:{os.getuid()}")


class Pipe:
    """A ByteReader. (A subprocess of asyncio ends only when its pipes do; ours need not.)"""

    def __init__(self, fd: int) -> None:
        os.set_blocking(fd, False)
        self._fd = fd

    async def read(self, size: int = 65536) -> bytes:
        while self._fd >= 0:
            try:
                return os.read(self._fd, size)
            except BlockingIOError:
                await ready(self._fd, write=False)
        return b""

    async def aclose(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class Stdin:
    def __init__(self, fd: int) -> None:
        os.set_blocking(fd, False)
        self._fd = fd

    async def write(self, data: bytes) -> None:
        while data:
            try:
                data = data[os.write(self._fd, data) :]
            except BlockingIOError:
                await ready(self._fd, write=True)

    async def aclose(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    abort = aclose


async def ready(fd: int, *, write: bool) -> None:
    loop, there = asyncio.get_running_loop(), asyncio.Event()
    add, remove = (loop.add_writer, loop.remove_writer) if write else (loop.add_reader, loop.remove_reader)
    own = os.dup(fd)  # another task may close `fd` meanwhile, and its number is used again
    add(own, there.set)
    try:
        await there.wait()
    finally:
        remove(own)
        os.close(own)


class Command:
    """An ExecHandle over a host process and its group."""

    def __init__(self, id: ExecId, spec: ExecSpec, argv: list[str], root: Path, background: bool) -> None:
        self.id, self.spec, self.background = id, spec, background
        self.started_at, self._start = time.time(), time.monotonic()
        (out, out_far), (err, err_far) = os.pipe(), os.pipe()
        feed_far, feed = os.pipe() if spec.stdin else (os.open("/dev/null", os.O_RDONLY), -1)
        self._process = subprocess.Popen(
            argv,
            stdin=feed_far,
            stdout=out_far,
            stderr=err_far,
            cwd=root,
            env={"PATH": os.environ["PATH"], **spec.env},
            start_new_session=True,
        )
        for fd in (out_far, err_far, feed_far):
            os.close(fd)
        self.stdin = Stdin(feed) if spec.stdin else None
        self.stdout, self.stderr = Pipe(out), Pipe(err)
        self.status: ExitStatus | None = None
        self.kept, self.owner = False, ""

    @property
    def pid(self) -> int:
        return self._process.pid

    async def wait(self) -> ExitStatus:
        if self.status is None and self._process.poll() is None:
            pidfd = os.pidfd_open(self.pid)
            try:
                await ready(pidfd, write=False)
            finally:
                os.close(pidfd)
        if self.status is None:
            code, seconds = self._process.wait(), time.monotonic() - self._start
            self.status = (
                ExitStatus(code=code, duration_seconds=seconds)
                if code >= 0
                else ExitStatus(signal=-code, duration_seconds=seconds)
            )
        return self.status

    async def signal(self, number: int) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.pid, number)

    async def kill(self) -> None:
        await self.signal(signal.SIGKILL)

    async def resize(self, size: PtySize) -> None: ...

    async def keep(self, timeout_seconds: float | None) -> None:
        session = SESSION.get()
        self.kept, self.owner = True, "" if session is None else session.name

    async def feed(self, data: bytes) -> None:
        assert self.stdin is not None
        await self.stdin.write(data)
        await self.stdin.aclose()

    async def leave(self) -> None:
        if not self.kept:
            await self.aclose()

    async def aclose(self) -> None:
        if not self.background:
            await self.end()
            for _ in range(20):
                await asyncio.sleep(0)  # as with a real one, others hear of the end before who closes it

    async def end(self) -> None:
        await self.kill()
        await self.wait()
        for stream in (self.stdin, self.stdout, self.stderr):
            if stream is not None:
                await stream.aclose()


class Place:
    """One sandbox of a world."""

    def __init__(self, plan: SandboxPlan, root: Path, boottime: Callable[[], float] = proc.boottime) -> None:
        self.plan, self.root, self._boottime = plan, root, boottime
        self.commands: dict[ExecId, Command] = {}
        self.strikes: dict[Limit, int] = {}
        self.disk_bytes: int | None = None
        self.usage_asked = 0
        self.frozen = 0
        self.runs = asyncio.Event()
        """Set but while it is paused."""
        self.runs.set()
        self.pauses = self.resumptions = 0
        self.before_pause: Callable[[], Awaitable[object]] | None = None
        self.pause_clock = PauseClock()
        self.awake: set[object] = set()
        self.deadline = plan.deadline
        self.left: float | None = None
        """Of its TTL, while it is paused."""
        self.ended: Ending | None = None
        self.over = asyncio.Event()

    def pause(self) -> None:
        if self.runs.is_set():
            now = self._boottime()
            self.left, self.deadline = self.deadline - now, now + self.plan.retention_seconds
            self.pauses += 1
            self.runs.clear()
            self.pause_clock.begin()

    def resume(self) -> None:
        if not self.runs.is_set():
            assert self.left is not None
            self.deadline, self.left = self._boottime() + self.left, None
            self.resumptions += 1
            self.runs.set()
            self.pause_clock.end()

    async def end(self, ending: Ending) -> None:
        if self.ended is None:
            self.ended = ending
            self.runs.set()
            self.pause_clock.end()
            for command in self.commands.values():
                await command.end()
            self.over.set()


class World:
    """What would go on without a service: the places, and failures to order."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.boottime: Callable[[], float] = proc.boottime
        self.places: dict[SandboxId, Place] = {}
        self.refusal: str | None = None
        self.creates = 0
        self.before_create: Callable[[SandboxPlan], Any] | None = None
        self.after_look: Callable[[], Awaitable[object]] | None = None
        """Between what `paused` finds and its answer."""
        self.spares: SpareStock | None = None


class Held:
    """An Instance: one service's view of a place."""

    def __init__(self, place: Place) -> None:
        self._place = place

    @property
    def id(self) -> SandboxId:
        return self._place.plan.id

    @property
    def template(self) -> Template:
        return self._place.plan.template

    @asynccontextmanager
    async def frozen(self) -> AsyncGenerator[None]:
        self._live().frozen += 1
        try:
            yield
        finally:
            self._place.frozen -= 1

    async def pause(self) -> Paused:
        if self._place.before_pause is not None:
            await self._place.before_pause()
        for _ in range(3):
            await asyncio.sleep(0)  # as with a real one, others do something meanwhile
        place = self._live()
        place.pause()
        return Paused(place.left, place.deadline)

    async def resume(self) -> float:
        await asyncio.sleep(0)
        place = self._live()
        place.resume()
        deadline = place.deadline
        await asyncio.sleep(0)
        return deadline

    async def stay_awake(self) -> Callable[[], None]:
        await asyncio.sleep(0)
        place, hold = self._live(), object()
        place.awake.add(hold)
        place.resume()
        return lambda: place.awake.discard(hold)

    @property
    def pause_clock(self) -> PauseClock:
        return self._place.pause_clock

    def _live(self) -> Place:
        if self._place.ended is not None:
            raise SandboxDiedError(f"{self.id} is dead")
        return self._place

    async def start(self, spec: ExecSpec, *, id: ExecId, background: bool) -> Command:
        place = self._live()
        await place.runs.wait()
        place = self._live()
        program = shutil.which(spec.argv[0])
        if program is None:
            raise ProgramNotFoundError(f"no program {spec.argv[0]!r}")
        argv = [program, *spec.argv[1:]]
        command = place.commands[id] = Command(id, spec, argv, place.root, background)
        return command

    async def user(self, name: str | None) -> User:
        return self.template.user(name) or User(name=name or "", uid=2000, gid=2000, home="/")

    async def take_up(self, exec: ExecId) -> Command:
        command = self._live().commands.get(exec)
        if command is None or not command.kept:
            raise NotFoundError(f"nothing is kept of {exec}")
        return command

    async def attach(self, exec: ExecId) -> Command:
        try:
            return self._live().commands[exec]
        except KeyError:
            raise NotFoundError(f"no exec {exec}") from None

    async def output(self, exec: ExecId, stream: int) -> FileReader:
        raise NotFoundError(f"no background command {exec}")

    async def accept(self, path: str) -> ByteStream:
        raise FileError(f"nothing comes to {path} in here")

    async def processes(self) -> tuple[Process, ...]:
        self._live()
        return ()

    async def posture(self) -> tuple[Check, ...]:
        self._live()
        return (Check(area="posture", name="walls", status="weak", detail="none"),)

    async def execs(self) -> tuple[ExecInfo, ...]:
        for command in self._live().commands.values():
            if command._process.poll() is not None:
                await command.wait()
        return tuple(map(info_of, self._live().commands.values()))

    async def signal_exec(self, exec: ExecId, number: int) -> None:
        await (await self.attach(exec)).signal(number)

    async def file(self, action: Any) -> Any:
        path = self._live().root / action.path.lstrip("/")
        match action:
            case StatFile():
                if not path.exists():
                    raise FileError(f"{action.path}: no such file", errno="ENOENT")
                return FileInfo(path=action.path, kind=FileKind.FILE, size_bytes=path.stat().st_size)
            case ReadFile():
                return FileReader(path)
            case WriteFile():
                return FileWriter(path)
            case _:
                raise NotImplementedError

    async def set_deadline(self, deadline: float) -> None:
        self._live().deadline = deadline

    async def usage(self) -> Usage:
        place = self._live()
        place.usage_asked += 1
        return Usage(strikes=dict(place.strikes), disk_bytes=place.disk_bytes)

    def strikes(self) -> dict[Limit, int]:
        return dict(self._live().strikes)

    async def kill(self) -> None:
        await self._place.end(Ending(limit=None, reason="killed"))
        for _ in range(5):
            await asyncio.sleep(0)  # as with a real one, others hear of the end before the killer does

    async def wait_ended(self) -> Ending:
        await self._place.over.wait()
        assert self._place.ended is not None
        return self._place.ended

    async def aclose(self) -> None: ...


class FileReader:
    def __init__(self, path: Path) -> None:
        self._file = path.open("rb")

    async def read(self, size: int = 65536) -> bytes:
        return self._file.read(size)

    async def aclose(self) -> None:
        self._file.close()


class FileWriter:
    def __init__(self, path: Path) -> None:
        self._path, self._data = path, b""

    async def write(self, data: bytes) -> None:
        self._data += data

    async def aclose(self) -> FileInfo | None:
        self._path.write_bytes(self._data)
        return FileInfo(path=str(self._path), kind=FileKind.FILE, size_bytes=len(self._data))

    async def abort(self) -> None: ...


class WorldBackend:
    def __init__(self, world: World, *, level: Level = Level.JAIL, adopt: bool = True, memory: bool = False) -> None:
        self._world, self._level, self._memory = world, level, memory
        self._adopt = adopt
        self.own: set[SandboxId] = set()

    @property
    def name(self) -> str:
        return self._level.value

    @property
    def spares(self) -> SpareStock | None:
        return self._world.spares

    @property
    def level(self) -> Level:
        return self._level

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(
            isolation=False,
            adopt=self._adopt,
            freeze=True,
            memory=self._memory,
            pause=True,
            idle=True,
            trees=True,
            exits=True,
        )

    def probe(self) -> str | None:
        return self._world.refusal

    def checks(self) -> tuple[Check, ...]:
        return (Check(area="backend", name=self.name, status="ok", detail="a world of tests"),)

    async def exits(self, id: SandboxId, instance_id: int, *, make: bool = False) -> Exits | None:
        raise NotImplementedError

    async def create(self, plan: SandboxPlan) -> Held:
        self._world.creates += 1
        await asyncio.sleep(0)
        if self._world.before_create is not None:
            waited = self._world.before_create(plan)
            if waited is not None:
                await waited
        root = self._world.root / plan.id
        root.mkdir(parents=True)
        place = self._world.places[plan.id] = Place(plan, root, self._world.boottime)
        self.own.add(plan.id)
        return Held(place)

    async def adopt(self, id: SandboxId) -> Held | None:
        place = self._world.places.get(id)
        if place is None or place.ended is not None or (not self._adopt and id not in self.own):
            return None
        return Held(place)

    async def state(self) -> BackendState:
        places = self._world.places.items()
        living = {i: p.ended for i, p in places if self._adopt or i in self.own}
        paused = {i: Paused(p.left, p.deadline) for i, p in places if not p.runs.is_set() and p.ended is None}
        if self._world.after_look is not None:
            await self._world.after_look()
        return BackendState(living, paused)

    async def kept(self) -> dict[ExecId, KeptExec]:
        places = self._world.places.items()
        return {
            exec: KeptExec(id, command.owner)
            for id, p in places
            for exec, command in p.commands.items()
            if command.kept
        }

    async def forget(self, id: SandboxId) -> None:
        place = self._world.places.get(id)
        if place is not None and place.ended is not None:
            del self._world.places[id]
            shutil.rmtree(place.root, ignore_errors=True)

    async def aclose(self) -> None: ...


_: type[Backend] = WorldBackend


class FolderPool(WithoutDisk):
    """Trees as plain directories."""

    driver, overlay = "copy", False
    worker = Worker(None)

    def __init__(self, root: Path) -> None:
        self._root, self.used_bytes = root, 0
        root.mkdir(parents=True, exist_ok=True)

    def create(
        self, name: str, *, layers: tuple[str, ...] = (), limit_bytes: int | None = None, mounts: int = 0
    ) -> None:
        try:
            (self._root / name).mkdir()
        except FileExistsError:
            raise AlreadyExistsError(name) from None

    def snapshot(
        self, source: str, name: str, *, limit_bytes: int | None = None, at_rest: bool = False, ours: bool = False
    ) -> None:
        try:
            shutil.copytree(self._root / source, self._root / name)
        except FileExistsError:
            raise AlreadyExistsError(name) from None

    def derive(self, source: str, name: str, *, limit_bytes: int | None = None) -> tuple[str, ...]:
        self.snapshot(source, name)
        return ()

    def rename(self, source: str, name: str, *, limit_bytes: int | None = None) -> None:
        (self._root / source).rename(self._root / name)

    def exchange(self, one: str, other: str) -> None:
        for name in (one, other):
            if not (self._root / name).exists():
                raise NotFoundError(f"no tree {name!r}")
        aside = self._root / f"{one}.aside"
        (self._root / one).rename(aside)
        (self._root / other).rename(self._root / one)
        aside.rename(self._root / other)

    def add_mounts(self, name: str, mounts: int) -> None:
        for number in range(mounts):
            (self._root / name / f"mount{number}").mkdir()

    def delete(self, name: str) -> None:
        shutil.rmtree(self._root / name, ignore_errors=True)

    def names(self) -> tuple[str, ...]:
        return tuple(sorted(p.name for p in self._root.iterdir()))

    def open(self, name: str) -> int:
        return os.open(self._root / name, os.O_RDONLY)


class Rig:
    """A state directory with its world; services on it as many as a test wants."""

    def __init__(self, state_dir: Path) -> None:
        self.state_dir = state_dir
        self.world = World(state_dir / "world")
        self.pool = FolderPool(state_dir / "pool")

    @asynccontextmanager
    async def service(
        self,
        *,
        level: Level = Level.JAIL,
        adopt: bool = True,
        memory: bool = False,
        sweeps: bool = False,
        workspaces: Any = None,
        templates: Any = OneTemplate(),  # noqa: B008
        **options: Any,
    ) -> AsyncGenerator[Service]:
        service = Service(
            self.state_dir,
            backends=lambda: [WorldBackend(self.world, level=level, adopt=adopt, memory=memory)],
            pool=lambda: self.pool,
            templates=lambda: templates,
            period_seconds=PERIOD_SECONDS,
            **{"policy": local_policy(os.getuid()), **options},
        )
        service.creation._workspaces = workspaces or service.workspaces
        try:
            if sweeps:
                async with service:
                    yield service
            else:
                await service.recovery.recover()
                yield service
        finally:
            await service.aclose()

    async def aclose(self) -> None:
        for place in tuple(self.world.places.values()):
            await place.end(Ending(limit=None, reason="the test is over"))


def put(service: Service, id: str, state: State, **fields: object) -> None:
    """As a service that died has left the row."""
    changes = {"state": state.value, **fields}
    names = ", ".join(f"{name} = ?" for name in changes)
    service.store.execute(f"UPDATE sandboxes SET {names} WHERE id = ?", (*changes.values(), id))


async def until(condition: Callable[[], Any], seconds: float = 60.0) -> None:
    """Polls what another task or the kernel brings about."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "the condition never came true"
        await asyncio.sleep(0.005)
