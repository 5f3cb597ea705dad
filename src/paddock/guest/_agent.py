"""The agent: one process that acts as one identity inside a sandbox. One poll loop, no threads, no imports."""

from __future__ import annotations

import os
import signal
import socket
import sys
from typing import NoReturn

from . import _requests as requests
from ._attach import attach, output
from ._config import AgentConfig
from ._connection import Channel, Connection, Handler
from ._doors import Doors
from ._exec import Execs
from ._faults import Fault, report
from ._files import OPERATIONS
from ._frames import Json
from ._kernel import become_subreaper
from ._loop import IN, ChildWatch, Loop
from ._ports import PortHandler
from ._process import prepare_process
from ._transfer import ReadHandler, WriteHandler
from ._tree import kill_descendants
from ._work import WORK, start_work
from ._worker import Workers

MAX_CONNECTIONS = 64
# Commands have the uid of their agent: what they send to everybody, as `kill -TERM -1` does, must not end it. Handled,
# not ignored: what is ignored stays so for the commands.
_HARMLESS = (
    signal.SIGHUP,
    signal.SIGINT,
    signal.SIGQUIT,
    signal.SIGTERM,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGALRM,
    signal.SIGTSTP,
    signal.SIGTTIN,
    signal.SIGTTOU,
)


def run_agent(listener: socket.socket, config: AgentConfig, *, init: int = 1) -> NoReturn:
    """Serves `listener` for ever, in a process of its own: closes every other descriptor above 2, resets signals.

    Ends with the process that started it, `init`. If that is pid 1, everything does; if not, the agent kills its
    commands.
    """
    code = 1
    try:
        watched = -1 if init == 1 else os.pidfd_open(init)
        prepare_process(keep=(listener.fileno(), watched), die_with_parent=init == 1)
        for number in _HARMLESS:
            signal.signal(number, _passed_over)
        Agent(config).serve(listener, watched)
        code = 0
    except BaseException as error:  # the last resort: nothing may unwind into whoever forked us
        report(error)
    finally:
        if init != 1:
            kill_descendants()
        os._exit(code)


def run_agent_on(reader: int, writer: int, config: AgentConfig) -> NoReturn:
    """The same for one connection over a pair of descriptors (virtio-serial, pipes); ends with it."""
    code = 1
    try:
        prepare_process(keep=(reader, writer))
        Agent(config).serve_stream(reader, writer)
        code = 0
    except BaseException as error:
        report(error)
    finally:
        os._exit(code)


def _passed_over(number: int, frame: object) -> None:
    pass


class Agent:
    def __init__(self, config: AgentConfig) -> None:
        self._config = config
        self._loop = Loop()
        self._connections: set[Connection] = set()
        self._alone = False
        if config.subreaper:
            become_subreaper()
        self._execs = Execs(self._loop, config)
        self._workers = Workers(self._loop)
        self._doors = Doors(self._loop, config)
        self._children = ChildWatch(self._loop, self._died, self._workers.stopped)

    def serve(self, listener: socket.socket, init: int = -1) -> None:
        """To the end of the process `init`, a pidfd, or for ever."""
        listener.setblocking(False)
        if init >= 0:
            self._loop.watch(init, IN, lambda events: self._loop.stop())

        def accept(events: int) -> None:
            try:
                stream, _ = listener.accept()
            except OSError:  # the host has gone again, or we are short of descriptors
                return
            if len(self._connections) >= MAX_CONNECTIONS:
                stream.close()
                return
            self._connections.add(Connection(self._loop, stream, self._open, self._lost))

        self._loop.watch(listener.fileno(), IN, accept)
        self._loop.run()

    def serve_one(self, stream: socket.socket) -> None:
        """This connection only, to its end."""
        self._alone = True
        self._connections.add(Connection(self._loop, stream, self._open, self._lost))
        self._loop.run()

    def serve_stream(self, reader: int, writer: int) -> None:
        self._alone = True
        self._connections.add(Connection(self._loop, (reader, writer), self._open, self._lost))
        self._loop.run()

    def _lost(self, connection: Connection) -> None:
        self._connections.discard(connection)
        if self._alone:
            self._loop.stop()

    def _died(self, pid: int, status: int) -> None:
        self._execs.died(pid, status)
        self._workers.died(pid)

    def _open(self, channel: Channel, request: Json, descriptors: list[int]) -> Handler | None:
        operation = requests.text(request, "op")
        if operation == "exec":
            return self._execs.start(channel, request, descriptors)
        if operation == "attach":
            return attach(self._execs, self._loop, self._config, channel, request)
        if operation == "output":
            return output(self._execs, self._loop, self._config, channel, request)
        if operation == "kill_exec":
            return self._execs.kill(channel, request)
        if operation == "read":
            return ReadHandler(self._loop, self._config, channel, request, descriptors)
        if operation == "write":
            return WriteHandler(self._loop, self._config, channel, request, descriptors)
        if operation == "connect":
            return PortHandler(self._loop, channel, request)
        if operation == "accept":
            return self._doors.accept(channel, request)
        if operation in WORK:
            return start_work(self._workers, self._config, channel, request, descriptors)
        channel.answer(self._at_once(operation, request))
        return None

    def _at_once(self, operation: str, request: Json) -> Json:
        if operation == "ping":
            return {"pid": os.getpid(), "python": ".".join(map(str, sys.version_info[:3]))}
        if operation == "execs":
            return self._execs.list(request)
        if operation == "signal":
            self._execs.signal(request)
            return {}
        if operation == "resize":
            self._execs.resize(request)
            return {}
        if operation in OPERATIONS:
            return OPERATIONS[operation](request, self._config)
        raise Fault("unsupported", f"the guest cannot do {operation!r}"[:200])
