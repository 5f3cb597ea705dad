"""A native guest that runs as a plain subprocess of ours."""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import time
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path

from paddock.backends._base import Ending, SandboxPlan
from paddock.backends._look import process
from paddock.backends.guest import Place
from paddock.backends.guest._connection import GuestConnection
from paddock.backends.guest._instance import GuestInstance
from paddock.errors import PaddockError, SandboxDied, Unsupported
from paddock.linux import processes
from paddock.model import ByteStream, Check, Limit, Process, Usage

from ._guest import Guest

_VERDICT_SECONDS = 10.0
_PAUSE_SECONDS = 0.05
_LOOK_SECONDS = 5.0
"""The loop's clock stands still while the machine sleeps, and the deadline's does not."""


class ProcessInstance(GuestInstance):
    """`start` makes a guest, and another one when the agent of the last was killed: all of them listen at `path`."""

    def __init__(
        self,
        plan: SandboxPlan,
        run: Path,
        entrance: socket.socket,
        path: Path,
        place: Place,
        start: Callable[[], Guest],
    ) -> None:
        super().__init__(plan.id, plan.template, self._dial, root_user=False)
        self._run, self._entrance, self._path, self._place, self._start = run, entrance, path, place, start
        self._deadline = plan.deadline
        self._reason: Ending | None = None
        """Why it is being ended."""
        self.ending: Ending | None = None
        self._ended = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._guest = start()
        self._guest.when_ended(self._guest_ended)
        self._timer = self._loop.call_soon(self._look_at_deadline)

    async def _dial(self, identity: str) -> GuestConnection:
        self._start_again()
        if self.ending is not None:
            raise FileNotFoundError(f"sandbox {self.id} has ended")
        return await GuestConnection.connect(self._path, self._place)

    async def _explain(self, identity: str, lost: GuestConnection) -> PaddockError:
        guest = self._guest  # another one is not made before this is told
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
        return SandboxDied(f"sandbox {self.id} is gone: {reason}")

    async def accept(self, path: str) -> ByteStream:
        raise Unsupported("backend 'process' has no doors: nothing is nested in it", hint="use an isolating level")

    async def set_deadline(self, deadline: float) -> None:
        if self.ending is not None:
            raise self.lost_error()
        self._deadline = deadline
        self._look_at_deadline()

    async def usage(self) -> Usage:
        if self.ending is not None:
            raise self.lost_error()
        return Usage()

    async def processes(self) -> tuple[Process, ...]:
        """All of them are processes of the host, with its numbers."""
        if self.ending is not None:
            raise self.lost_error()
        found = await asyncio.to_thread(processes.below, self._guest.pid)
        return tuple(process(one, pid=one.pid, parent=one.parent, uid=one.uid) for one in found)

    async def posture(self) -> tuple[Check, ...]:
        return (
            Check(area="posture", name="isolation", status="missing", detail="none: these are processes of the host"),
        )

    def frozen(self) -> AbstractAsyncContextManager[None]:
        raise Unsupported("backend 'process' cannot hold a sandbox still", hint="use an isolating level")

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
            self._guest = self._start()
            self._guest.when_ended(self._guest_ended)

    def _guest_ended(self) -> None:
        """An agent that was killed is one of the sandbox's accidents; the end of its parent is the sandbox's."""
        if self._reason is None:
            if self._guest.status is not None:
                if any(not connection.closed for connection in self._connections.values()):
                    # It may have been made when the agent was dead already: then only the next one accepts it.
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
