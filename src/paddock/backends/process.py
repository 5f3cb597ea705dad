"""Run the native guest as plain subprocesses: no isolation at all. It is for tests of the layers above, and nothing
else.

A parent above the agent ends what a killed agent leaves. Paths are resolved below a directory of the sandbox,
lexically; that isn't isolation.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import shutil
import signal
import socket
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from functools import partial
from pathlib import Path
from struct import Struct

from paddock.backends._checks import missing, weak
from paddock.backends._look import process
from paddock.backends.base import BackendState, Capabilities, Ending, Exits, KeptExec, SandboxPlan
from paddock.backends.guest import PING, GuestDefaults, check, program
from paddock.backends.guest.connection import GuestConnection
from paddock.backends.guest.instance import GuestInstance
from paddock.errors import AlreadyExistsError, PaddockError, SandboxDiedError, UnsupportedError
from paddock.linux import local_sockets, processes
from paddock.model import ByteStream, Check, ExecId, Level, Limit, Process, SandboxId, Usage, User
from paddock.supervisor import layout
from paddock.wire import close_all
from paddock.wire.guest import PingReply

_START_SECONDS = 30.0
_KILL_SECONDS = 16.0
_VERDICT_SECONDS = 10.0
_PAUSE_SECONDS = 0.05
_LOOK_SECONDS = 5.0
"""The loop's clock stands still while the machine sleeps, and the deadline's does not."""
_SOCKET = "user.sock"
_PATH = "/usr/local/bin:/usr/bin:/bin"
_REPORT = Struct("<i")
_FIRST = 64


class Guest:
    """Start a guest. It ends with this process, or by `end`."""

    def __init__(self, program: Path, entrance: socket.socket, when_ended: Callable[[], None]) -> None:
        self.status: int | None = None
        """The wait status of its agent, known when nothing that it started is left."""
        self.code = 0
        """The exit code of its parent."""
        self.ended = asyncio.Event()
        self._when_ended = when_ended
        self._loop = asyncio.get_running_loop()
        with contextlib.ExitStack() as theirs, contextlib.ExitStack() as undo:
            lifeline, self._lifeline = os.pipe2(os.O_CLOEXEC)
            theirs.callback(os.close, lifeline)
            undo.callback(os.close, self._lifeline)
            self._report, report = os.pipe2(os.O_CLOEXEC)
            theirs.callback(os.close, report)
            undo.callback(os.close, self._report)
            self.pid = _spawn(program, (entrance.fileno(), lifeline, report))
            self._pidfd = os.pidfd_open(self.pid)
            self._loop.add_reader(self._pidfd, self._reap)
            undo.pop_all()

    async def end(self) -> None:
        """Wait until nothing is left of it."""
        self.let_go()
        try:
            async with asyncio.timeout(_KILL_SECONDS):
                await self.ended.wait()
        except TimeoutError:
            for one in reversed(processes.below(self.pid)):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(one.pid, signal.SIGKILL)
            signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)
            await self.ended.wait()

    def let_go(self) -> None:
        """End it, with all that it has started."""
        if self._lifeline >= 0:
            os.close(self._lifeline)
            self._lifeline = -1
            signal.pidfd_send_signal(self._pidfd, signal.SIGCONT)  # its commands may have stopped it

    def _reap(self) -> None:
        self._loop.remove_reader(self._pidfd)
        self.code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        report = os.read(self._report, _REPORT.size)
        if len(report) == _REPORT.size:
            (self.status,) = _REPORT.unpack(report)
        for fd in (self._pidfd, self._report, self._lifeline):
            if fd >= 0:
                os.close(fd)
        self._lifeline = -1
        self.ended.set()
        self._when_ended()


def _spawn(program: Path, descriptors: tuple[int, ...]) -> int:
    """With these as 3 and on, and nothing else."""
    above = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, _FIRST) for fd in descriptors]
    try:
        actions = [
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDWR, 0),
            (os.POSIX_SPAWN_DUP2, 0, 1),
            *((os.POSIX_SPAWN_DUP2, fd, 3 + index) for index, fd in enumerate(above)),
        ]
        return os.posix_spawn(program, ["paddock-guest"], {}, file_actions=actions, setsid=True)
    finally:
        close_all(above)


class ProcessInstance(GuestInstance):
    """Hold a sandbox. `start` makes a guest, and another one after the agent of the last was killed: all listen in
    `run`."""

    def __init__(
        self,
        plan: SandboxPlan,
        run: Path,
        entrance: socket.socket,
        place: GuestDefaults,
        start: Callable[[Callable[[], None]], Guest],
    ) -> None:
        super().__init__(plan.id, plan.template, root_user=False)
        self._run, self._entrance, self._place, self._start = run, entrance, place, start
        self._deadline = plan.deadline
        self._reason: Ending | None = None
        """The reason to report when it ends."""
        self.ending: Ending | None = None
        self._ended = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._guest = start(self._guest_ended)
        self._timer = self._loop.call_soon(self._look_at_deadline)

    async def connect(self, identity: str) -> GuestConnection:
        self._start_again()
        if self.ending is not None:
            raise FileNotFoundError(f"sandbox {self.id} has ended")
        return await GuestConnection.connect(self._run / _SOCKET, self._place)

    async def _explain(self, identity: str, lost: GuestConnection) -> PaddockError:
        guest = self._guest  # the report of this one comes before another start
        try:
            async with asyncio.timeout(_VERDICT_SECONDS):
                await guest.ended.wait()
        except TimeoutError:
            return self._agent_lost(identity, "closed the connection")
        if self.ending is not None or guest.status is None:
            return self.lost_error()
        how = f"was killed by signal {os.WTERMSIG(guest.status)}" if os.WIFSIGNALED(guest.status) else "ended"
        return self._agent_lost(identity, f"{how}, and all that it had started was ended", killed=True)

    def lost_error(self) -> PaddockError:
        reason = self.ending.reason if self.ending is not None else "its guest went away"
        return SandboxDiedError(f"sandbox {self.id} is gone: {reason}")

    async def accept(self, path: str) -> ByteStream:
        raise UnsupportedError("backend 'process' has no nested sandboxes", hint="use an isolating level")

    async def set_deadline(self, deadline: float) -> None:
        self._require_alive()
        self._deadline = deadline
        self._look_at_deadline()

    async def usage(self) -> Usage:
        self._require_alive()
        return Usage()

    def _require_alive(self) -> None:
        if self.ending is not None:
            raise self.lost_error()

    async def processes(self) -> tuple[Process, ...]:
        """All of them are processes of the host, with its numbers."""
        self._require_alive()
        found = await asyncio.to_thread(processes.below, self._guest.pid)
        return tuple(process(one, pid=one.pid, parent=one.parent, uid=one.uid) for one in found)

    async def posture(self) -> tuple[Check, ...]:
        return (missing("posture", "isolation", "none: these are processes of the host"),)

    def frozen(self) -> AbstractAsyncContextManager[None]:
        raise UnsupportedError("backend 'process' cannot hold a sandbox still", hint="use an isolating level")

    async def kill(self) -> None:
        if self.ending is None:
            self._end(Ending(limit=None, reason="killed"))
            await self._guest.end()
            await self._ended.wait()
        await self.aclose()

    async def wait_ended(self) -> Ending:
        await self._ended.wait()
        assert self.ending is not None
        return self.ending

    async def aclose(self) -> None:
        self.close_connections()

    def _look_at_deadline(self) -> None:
        self._timer.cancel()
        left = self._deadline - time.clock_gettime(time.CLOCK_BOOTTIME)
        if left > 0:
            self._timer = self._loop.call_later(min(left, _LOOK_SECONDS), self._look_at_deadline)
        elif self.ending is None:
            self._end(Ending(limit=Limit.TTL, reason="its time was up"))

    def _end(self, ending: Ending) -> None:
        if self._reason is None:
            self._reason = ending
            self._guest.let_go()
        if self._guest.ended.is_set():
            self._guest_ended()

    def _start_again(self) -> None:
        if self._guest.ended.is_set() and self.ending is None:
            self._guest = self._start(self._guest_ended)

    def _guest_ended(self) -> None:
        """Note the guest's end. The sandbox survives a killed agent, and ends with the agent's parent."""
        if self._reason is None:
            if self._guest.status is not None:
                if any(not connection.closed for connection in self._connections.values()):
                    # A connection made after the agent's death waits for the next agent.
                    self._loop.call_later(_PAUSE_SECONDS, self._start_again)
                return
            self._reason = Ending(limit=None, reason=f"its init ended with {self._guest.code}")
        if self.ending is not None:
            return
        self.ending = self._reason
        self._timer.cancel()
        self.close_connections()
        self._entrance.close()
        shutil.rmtree(self._run, ignore_errors=True)
        self._ended.set()


class ProcessBackend:
    """Make sandboxes of subprocesses. It makes `state_dir` if it is missing. Sandboxes end with this process: no later
    one could find them."""

    name = "process"
    level = Level.PROCESS
    spares = None

    def __init__(self, state_dir: Path) -> None:
        self._state_dir = state_dir
        self._instances: dict[SandboxId, ProcessInstance] = {}

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(isolation=False)

    def probe(self) -> str | None:
        return None

    def checks(self) -> tuple[Check, ...]:
        return (weak("process", "isolation", "none: for tests only"), check())

    async def create(self, plan: SandboxPlan) -> ProcessInstance:
        if plan.trees:
            self.capabilities.require("trees", self.name)
        run = self._state_dir / layout.RUN / plan.id
        try:
            run.mkdir(parents=True, mode=0o700)
        except FileExistsError:
            raise AlreadyExistsError(f"there is a sandbox {plan.id} already") from None
        with contextlib.ExitStack() as undo:
            undo.callback(shutil.rmtree, run, ignore_errors=True)
            root = run / "root"
            user = plan.template.user(None) or User(name="user", uid=os.getuid(), gid=os.getgid(), home="/")
            for directory in (plan.template.workdir, user.home, "/tmp"):  # noqa: S108 - below the root of the sandbox
                (root / directory.lstrip("/")).mkdir(parents=True, exist_ok=True)
            instance = await self._start(plan, run, root, user, undo)
            undo.pop_all()
        self._instances[plan.id] = instance
        return instance

    async def _start(
        self, plan: SandboxPlan, run: Path, root: Path, user: User, undo: contextlib.ExitStack
    ) -> ProcessInstance:
        guest = await asyncio.to_thread(program)
        entrance = undo.enter_context(local_sockets.listen(run, _SOCKET))
        env = {"PATH": _PATH, "HOME": str(root / user.home.lstrip("/")), "USER": user.name, "LOGNAME": user.name}
        env |= {"LANG": "C.UTF-8", **plan.template.env, **plan.spec.env}
        place = GuestDefaults(workdir=plan.template.workdir, env=env, root=str(root))
        instance = ProcessInstance(plan, run, entrance, place, partial(Guest, guest, entrance))
        try:
            async with asyncio.timeout(_START_SECONDS):
                await (await instance.connection("user")).open(PING).call(PingReply)
        except BaseException:  # also where the caller has left
            await asyncio.shield(instance.kill())
            raise
        return instance

    async def adopt(self, id: SandboxId) -> ProcessInstance | None:
        instance = self._instances.get(id)
        return instance if instance is not None and instance.ending is None else None

    async def exits(self, id: SandboxId, instance_id: int, *, make: bool = False) -> Exits | None:
        raise UnsupportedError("backend 'process' has no walls to make exits in", hint="use an isolating level")

    async def state(self) -> BackendState:
        return BackendState({id: instance.ending for id, instance in self._instances.items()}, {})

    async def kept(self) -> Mapping[ExecId, KeptExec]:
        return {}

    async def forget(self, id: SandboxId) -> None:
        instance = self._instances.get(id)
        if instance is not None and instance.ending is not None:
            del self._instances[id]

    async def aclose(self) -> None:
        for instance in self._instances.values():
            await instance.aclose()
