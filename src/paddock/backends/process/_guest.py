"""The native guest as a subprocess of ours: the agent, and above it a parent that ends what a killed agent leaves."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import signal
import socket
from collections.abc import Callable
from pathlib import Path
from struct import Struct

from paddock.linux import processes

_REPORT = Struct("<i")
_KILL_SECONDS = 16.0
_FIRST = 64


class Guest:
    """Started when it is made; ends with this process, or by `end`."""

    def __init__(self, program: Path, entrance: socket.socket) -> None:
        self.status: int | None = None
        """The wait status of its agent, known when nothing is left of what that had started."""
        self.code = 0
        """The exit code of its parent."""
        self.ended = asyncio.Event()
        self._call: Callable[[], None] = _nothing
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

    def when_ended(self, call: Callable[[], None]) -> None:
        self._call = call

    async def end(self) -> None:
        """Returns when nothing is left of it."""
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
        """It ends, with all that it has started."""
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
        self._call()


def _nothing() -> None:
    pass


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
        for fd in above:
            os.close(fd)
