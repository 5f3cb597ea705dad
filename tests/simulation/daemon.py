"""The daemon without a process: its own code, on the simulated loop, over the simulated world."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager
from contextvars import Context
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import patch

from paddock.backends.threads import TaskSet
from paddock.daemon.clock import Clock
from paddock.daemon.main import _sessions, start
from paddock.daemon.main._listener import Listener
from paddock.daemon.main._requests import Requests
from paddock.daemon.main._sessions import Session
from paddock.daemon.main.service import Service
from paddock.errors import DaemonLostError, DaemonUnavailableError, InternalError
from paddock.model import Principal, codec
from paddock.policy import local_policy
from paddock.wire import Frame, Kind
from tests.stand_ins import OneTemplate

from .event_loop import generation
from .world import (
    SimulatedAudit,
    SimulatedBackend,
    SimulatedGatewayClient,
    SimulatedPool,
    SimulatedStore,
    World,
)

STATE = Path("/tmp")
ME = Principal("local:0")


class SimulatedNode:
    config = SimpleNamespace(idle_exit_seconds=1e9)

    def __init__(self, world: World, period_seconds: float) -> None:
        self.notices: list[str] = []
        pool = SimulatedPool(world)
        self.service = Service(
            STATE,
            backends=[SimulatedBackend(world)],
            pool=lambda: pool,  # pyright: ignore[reportArgumentType]
            templates=OneTemplate,
            policy=local_policy(0),
            audit=SimulatedAudit(world),
            store=SimulatedStore(world),
            clock=Clock(world.wall, world.boottime),
            period_seconds=period_seconds,
        )
        self.perform = self.service.perform

    async def aclose(self) -> None:
        await self.service.aclose()


class SimulatedListener(Listener):
    is_open = False

    def listen(self, directory: Path) -> None:
        self.is_open = True

    def stop(self) -> None:
        self.is_open = False

    @property
    def leaves(self) -> bool:
        return not self.is_open

    def _session_ended(self, session: Session) -> None:
        for connection in tuple(session.connections):
            cast("Connection", connection).close()
        super()._session_ended(session)


class SimulatedCode:
    """Stays as it is."""

    def has_changed(self) -> bool:
        return False

    def close(self) -> None: ...


class SimulatedDaemon(start.Daemon):
    """`Daemon` but for its process: no lock, no log, no watch of a directory."""

    def __init__(self, world: World, period_seconds: float) -> None:
        self.world, self._state_dir, self._principal = world, STATE, ME
        self._instance = "simulated"
        self._ends_sessions = self._closing = False
        self._end_tasks = TaskSet()
        self._idle = None
        self._code: Any = SimulatedCode()
        self._inotify = -1
        self._stopped = asyncio.Event()
        node: Any = SimulatedNode(world, period_seconds)
        self._node = node
        requests = Requests(node, ME, control=self._control)
        self.listener = self._listener = SimulatedListener(requests, greet=self._greet, ended=self._session_ended)

    async def serve(self, ready: Callable[[], None]) -> None:
        """What `run` does."""
        try:
            await self._node.service.start()
            self._restore_sessions()
            self._listener.listen(STATE)
            ready()
            await self._stopped.wait()
        finally:
            await self._close()


class Connection:
    """A client's connection in the daemon, as `_Connection` without a socket."""

    def __init__(self, daemon: SimulatedDaemon, token: str, pid: int) -> None:
        self._daemon, self._order = daemon, next(daemon.world.loop.numbers)
        self._open: dict[int, asyncio.Task[None]] = {}
        self._answer: dict[int, Callable[[bool, bytes], None]] = {}
        self.closed = False
        self.session = daemon.listener.session(token, pid)
        self.session.connections.add(self)
        cast("set[Any]", daemon.listener._connections).add(self)

    def __hash__(self) -> int:
        return self._order

    def take(self, channel: int, body: bytes, answer: Callable[[bool, bytes], None], flags: int) -> None:
        if self._daemon.listener.leaves:
            return answer(False, codec.encode_error(DaemonUnavailableError("the daemon leaves")))
        answered = False

        def reply(kind: Kind, body: bytes, descriptors: tuple[int, ...] = ()) -> None:
            nonlocal answered
            if kind is not Kind.CONTROL:
                answered = True
                if not self.closed:
                    answer(kind is Kind.REPLY, body)

        frame = Frame(Kind.OPEN, channel, body, flags=flags)
        task = asyncio.get_running_loop().create_task(self._daemon.listener.requests.answer(self.session, frame, reply))
        self._open[channel] = task
        self._daemon.listener.tasks.add(task)

        def done(task: asyncio.Task[None]) -> None:
            del self._open[channel]
            self._daemon.listener.tasks.discard(task)
            if not answered:
                leaves = self._daemon.listener.leaves
                error = DaemonLostError("the daemon leaves") if leaves else InternalError("the request was cancelled")
                reply(Kind.ERROR, codec.encode_error(error))
            if not task.cancelled():
                task.exception()

        task.add_done_callback(done)

    def cancel(self, channel: int) -> None:
        if (task := self._open.get(channel)) is not None:
            task.cancel()

    def finish(self) -> asyncio.Future[None]:
        self.close()
        finished: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        finished.set_result(None)
        return finished

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            is_lost = False
            for task in self._open.values():
                if self._daemon.listener.requests.recent.connection_lost(task):
                    is_lost = True
                else:
                    task.cancel()
            cast("set[Any]", self._daemon.listener._connections).discard(self)
            self.session.disconnected(self, is_lost=is_lost)


def daemon_context(number: int) -> Context:
    context = Context()
    context.run(generation.set, number)
    return context


@contextmanager
def machine(current: Callable[[], World]) -> Generator[None]:
    """In place of what the daemon asks of the machine it runs on."""
    from paddock.backends import threads
    from paddock.daemon import clock
    from paddock.daemon.access import _trust, gateways
    from paddock.daemon.sandboxes import _copies, _ttl, cleanup, create
    from paddock.gateway.authority import Authority
    from paddock.model import ids

    def open_pidfd(pid: int) -> int:
        if pid not in current().processes:
            raise ProcessLookupError
        return pid

    def thread(target: Callable[[], object], name: str, daemon: bool) -> SimpleNamespace:
        return SimpleNamespace(start=lambda: current().loop.run_in_executor(None, target))

    class Client(SimulatedGatewayClient):
        def __init__(self, *arguments: Any, **named: Any) -> None:
            self.world = current()
            super().__init__(*arguments, **named)

    def ordered(self: Any) -> int:
        known = vars(self)
        if "_order" not in known:
            known["_order"] = next(current().loop.numbers)
        return known["_order"]

    with ExitStack() as patches:
        for where, name, what in (
            (_sessions, "start_time", open_pidfd),
            (_sessions, "pidfd", SimpleNamespace(open=open_pidfd)),
            (
                _sessions,
                "os",
                SimpleNamespace(close=lambda fd: None, urandom=lambda size: current().chance.randbytes(size)),
            ),
            (threads, "threading", SimpleNamespace(Thread=thread)),
            (ids, "time", SimpleNamespace(time=lambda: current().wall())),
            (ids, "os", SimpleNamespace(urandom=lambda size: current().chance.randbytes(size))),
            (gateways, "GatewayClient", Client),
            (_trust, "write", lambda state, id, certificate: current().effect("trust", id)),
            (_copies, "much_is_dirty", lambda: current().likely(0.1)),
            (Authority, "make", lambda name: SimpleNamespace(certificate=b"c", key=b"k")),
            (asyncio.Event, "__hash__", ordered),
            *((module, "boot_id", lambda: "boot") for module in (clock, create, cleanup, _ttl, _sessions)),
        ):
            patches.enter_context(patch.object(where, name, what))
        yield
