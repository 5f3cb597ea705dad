"""A guest that runs as a plain subprocess of ours."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import time
from contextlib import AbstractAsyncContextManager
from pathlib import Path

from paddock.backends._base import Ending, SandboxPlan
from paddock.backends._guest import GuestConnection, GuestInstance
from paddock.backends._look import process
from paddock.errors import PaddockError, SandboxDied, Unsupported
from paddock.guest._frames import Json
from paddock.linux import processes
from paddock.model import Check, Limit, Process, Usage

_KILL_SECONDS = 8.0


class ProcessInstance(GuestInstance):
    def __init__(self, plan: SandboxPlan, process: subprocess.Popen[bytes], host: int, run: Path) -> None:
        super().__init__(plan.id, plan.template, self._dial, root_user=False)
        self._process, self._host = process, host
        self._run = run
        self._deadline = plan.deadline
        self._killed = False
        self._control: GuestConnection | None = None
        self.ending: Ending | None = None
        self._ended = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._pidfd = os.pidfd_open(process.pid)
        self._loop.add_reader(self._pidfd, self._reap)

    async def _dial(self, identity: str) -> GuestConnection:
        return await GuestConnection.connect(self._run / f"{identity}.sock")

    def lost_error(self) -> PaddockError:
        reason = self.ending.reason if self.ending is not None else "its guest went away"
        return SandboxDied(f"sandbox {self.id} is gone: {reason}")

    async def set_deadline(self, deadline: float) -> None:
        if self._control is None or self._control.closed:
            try:
                self._control = await self._dial("init")
            except OSError:
                raise self.lost_error() from None
        try:
            await self._control.open({"op": "deadline", "boottime": deadline}).call(Json)
        except SandboxDied:
            raise self.lost_error() from None
        self._deadline = deadline

    async def usage(self) -> Usage:
        if self.ending is not None:
            raise self.lost_error()
        return Usage()

    async def processes(self) -> tuple[Process, ...]:
        """All of them are processes of the host, with its numbers."""
        if self.ending is not None:
            raise self.lost_error()
        found = await asyncio.to_thread(processes.below, self._process.pid)
        boot = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)
        return tuple(process(one, pid=one.pid, parent=one.parent, uid=one.uid, boot=boot) for one in found)

    async def posture(self) -> tuple[Check, ...]:
        return (
            Check(area="posture", name="isolation", status="missing", detail="none: these are processes of the host"),
        )

    def frozen(self) -> AbstractAsyncContextManager[None]:
        raise Unsupported("backend 'process' cannot hold a sandbox still", hint="use an isolating level")

    async def kill(self) -> None:
        if not self._ended.is_set():
            self._killed = True
            self._process.send_signal(signal.SIGTERM)  # it kills whatever is below it, and ends
            try:
                async with asyncio.timeout(_KILL_SECONDS):
                    await self._ended.wait()
            except TimeoutError:
                self._process.kill()
                await self._ended.wait()
        await self.aclose()

    async def wait_ended(self) -> Ending:
        await self._ended.wait()
        assert self.ending is not None
        return self.ending

    async def aclose(self) -> None:
        self.close_connections()
        if self._control is not None:
            self._control.close()

    def _reap(self) -> None:
        self._loop.remove_reader(self._pidfd)
        os.close(self._pidfd)
        os.close(self._host)
        self._process.wait()
        if self._killed:
            self.ending = Ending(limit=None, reason="killed")
        elif time.clock_gettime(time.CLOCK_BOOTTIME) >= self._deadline:
            self.ending = Ending(limit=Limit.TTL, reason="its time was up")
        else:
            self.ending = Ending(limit=None, reason=f"its init ended with {self._process.returncode}")
        self.close_connections()  # an agent that still lives would say that the directory is gone
        shutil.rmtree(self._run, ignore_errors=True)
        self._ended.set()
