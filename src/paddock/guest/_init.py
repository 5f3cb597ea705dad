"""Pid 1 of a sandbox: reaps, holds the deadline, starts agents. Executes nothing foreign and reads nothing foreign."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import time
from collections.abc import Callable
from typing import NoReturn

from . import _requests as requests
from ._config import InitConfig
from ._connection import Channel, Connection, Handler
from ._faults import Fault, report
from ._frames import Json
from ._kernel import become_subreaper
from ._loop import IN, ChildWatch, Loop, Timer
from ._process import prepare_process
from ._tree import Orphans, TreeKill, kill_descendants

StartAgent = Callable[[str], int]
_QUICK_DEATH_SECONDS = 1.0
_STANDS_SECONDS = 1.0
_FIRST_PAUSE_SECONDS = 0.05
_LONGEST_PAUSE_SECONDS = 5.0
_EXIT_SECONDS = 1.0
MAX_CONNECTIONS = 32


def run_init(
    config: InitConfig,
    start_agent: StartAgent,
    ready: Callable[[], None],
    *,
    keep: tuple[int, ...] = (),
) -> NoReturn:
    """Serves until the deadline, or SIGTERM; then everything inside dies with it.

    `start_agent(name)` makes a process that ends in `run_agent`, and returns its pid. `ready` is called once,
    when the eager agents are started. Descriptors above 2 that are not in `keep` are closed. Where this process is
    not pid 1 of a namespace, it kills its descendants itself.
    """
    code = 1
    try:
        prepare_process(keep=(*_descriptors(config), *keep), die_with_parent=False)
        Init(config, start_agent).run(ready)
        code = 0
    except BaseException as error:
        report(error)
    finally:
        if os.getpid() != 1:
            kill_descendants()
        os._exit(code)


def _descriptors(config: InitConfig) -> tuple[int, ...]:
    return (config.control.fileno(), *(listener.fileno() for listener in config.agents.values()))


class _Agent:
    """`clearing` is the end of what a dead one left behind; `asked` are called when that is over."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.pid: int | None = None
        self.started = 0.0
        self.pause = 0.0
        self.clearing: TreeKill | None = None
        self.last: tuple[int, int] | None = None
        self.asked: list[Callable[[], None]] = []


class _Asked(Handler):
    """A question that is answered later."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel

    def close(self) -> None:
        self._channel.end()


class Init:
    def __init__(self, config: InitConfig, start_agent: StartAgent) -> None:
        self._config = config
        self._start_agent = start_agent
        self._loop = Loop()
        self._agents = {name: _Agent(name) for name in config.agents}
        self._connections: set[Connection] = set()
        self._timer: Timer | None = None
        self.deadline = config.deadline
        self._children = ChildWatch(self._loop, self._died, self._stopped)
        if os.getpid() != 1:  # pid 1 adopts everybody, and ignores signals that it does not handle
            become_subreaper()
            signal.signal(signal.SIGTERM, self._terminated)

    def run(self, ready: Callable[[], None]) -> None:
        self.set_out(ready)
        self._loop.run()

    def set_out(self, ready: Callable[[], None]) -> None:
        """Everything before the first event."""
        if self._config.host >= 0:
            self._loop.watch(self._config.host, 0, lambda events: self._loop.stop())  # a hang-up needs no asking
        self.set_deadline(self._config.deadline)
        control = self._config.control
        control.setblocking(False)
        self._loop.watch(control.fileno(), IN, lambda events: self._accept(control))
        for agent in self._agents.values():
            if agent.name in self._config.eager:
                self._activate(agent)
            else:
                self._listen(agent)
        ready()

    # agents

    def _listen(self, agent: _Agent) -> None:
        """Wait for the first connection; the agent accepts it."""
        fd = self._config.agents[agent.name].fileno()

        def called(events: int) -> None:
            self._loop.unwatch(fd)
            self._activate(agent)

        self._loop.watch(fd, IN, called)

    def _activate(self, agent: _Agent) -> None:
        try:
            agent.pid = self._start_agent(agent.name)
        except OSError as error:  # no room for a process: that may pass
            report(error)
            self._later(agent)
            return
        agent.started = time.monotonic()

    def _died(self, pid: int, status: int) -> None:
        for agent in self._agents.values():
            if agent.pid == pid:
                agent.pid, agent.last = None, (pid, status)
                self._clear(agent)
            elif agent.clearing is not None:
                agent.clearing.reaped(pid)

    def _stopped(self, pid: int) -> None:
        """Commands have the same uid as their agent and may stop it: `kill -STOP -1` does. So does the keeper, for an
        instant, where it has no freezer: it is left alone for that long."""
        self._loop.after(_STANDS_SECONDS, lambda: self._let_go_on(pid))

    def _let_go_on(self, pid: int) -> None:
        if any(agent.pid == pid for agent in self._agents.values()):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)

    def _clear(self, agent: _Agent) -> None:
        """Ends what an agent left behind: nobody could list it, attach to it, or end it on time. Then the next one."""

        def cleared(survivors: int) -> None:
            agent.clearing = None
            asked, agent.asked = agent.asked, []
            for answer in asked:
                answer()
            if time.monotonic() - agent.started < _QUICK_DEATH_SECONDS:
                self._later(agent)
            else:
                agent.pause = 0.0
                self._listen(agent)

        agent.clearing = TreeKill(self._loop, Orphans(self._living), cleared)

    def _living(self) -> set[int]:
        return {agent.pid for agent in self._agents.values() if agent.pid is not None}

    def _later(self, agent: _Agent) -> None:
        """It died as soon as it was there: not again at once, lest we do nothing else."""
        agent.pause = min(max(agent.pause * 2, _FIRST_PAUSE_SECONDS), _LONGEST_PAUSE_SECONDS)
        self._loop.after(agent.pause, lambda: self._listen(agent))

    # orders

    def _accept(self, control: socket.socket) -> None:
        try:
            stream, _ = control.accept()
        except OSError:
            return
        if len(self._connections) >= MAX_CONNECTIONS:
            stream.close()
            return
        self._connections.add(Connection(self._loop, stream, self._open, self._connections.discard))

    def _open(self, channel: Channel, request: Json, descriptors: list[int]) -> Handler | None:
        operation = requests.text(request, "op")
        if operation == "ping":
            channel.reply({"pid": os.getpid()})
        elif operation == "deadline":
            value = request.get("boottime")
            if type(value) not in (int, float):
                raise Fault("invalid_argument", "boottime must be a number")
            self.set_deadline(float(value))  # pyright: ignore[reportArgumentType]
            channel.reply({})
        elif operation == "lost":
            return self._lost(channel, request)
        elif operation == "agents":
            channel.reply({"agents": {agent.name: agent.pid for agent in self._agents.values()}})
        else:
            raise Fault("unsupported", f"init cannot do {operation!r}"[:200])
        channel.end()
        return None

    def _lost(self, channel: Channel, request: Json) -> Handler:
        """What became of an agent whose connection ended: told when nothing that it had started is left."""
        agent = self._agents.get(requests.text(request, "agent"))
        if agent is None:
            raise Fault("not_found", "no such agent")
        pid = requests.optional_number(request, "pid", low=1)

        def answer() -> None:
            number = os.WTERMSIG(agent.last[1]) if agent.last is not None and agent.last[0] == pid else 0
            channel.reply({"alive": agent.pid == pid, "signal": number or None})
            channel.end()

        def it_lives() -> None:
            if agent.pid == pid:
                agent.asked.remove(answer)
                answer()

        if agent.clearing is None and (pid is None or agent.pid != pid):
            answer()
        else:
            # A connection ends before the process is reaped to which it belonged; or it was only the connection.
            agent.asked.append(answer)
            self._loop.after(_EXIT_SECONDS, it_lives)
        return _Asked(channel)

    # the end

    def set_deadline(self, deadline: float) -> None:
        self.deadline = deadline
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.at(deadline, self._overdue)

    def _overdue(self) -> None:
        """Whoever resumes a sandbox has sent the new deadline before it runs: that is read first."""
        self._timer = self._loop.after(self._config.grace_seconds, self._loop.stop)

    def _terminated(self, number: int, frame: object) -> None:
        self._loop.stop()
