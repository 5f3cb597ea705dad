"""A live container. Each identity has a socket in `containers/<id>/`, so the daemon needs no state to reach it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable
from typing import TYPE_CHECKING

from paddock.backends._environment import certificates
from paddock.backends.base import Command, Ending, Paused
from paddock.backends.guest import place_of
from paddock.backends.guest.connection import GuestConnection
from paddock.backends.guest.instance import GuestInstance
from paddock.errors import SandboxDiedError
from paddock.linux import caps
from paddock.linux.cgroups import Refusals
from paddock.model import Check, ExecId, ExecSpec, Process, Usage, replace

from . import _running
from ._egress import TRUSTED
from ._options import CAPABILITIES
from ._running import RunningContainer
from ._start import OOM_SCORE
from ._transfer import owner

if TYPE_CHECKING:
    from ._backend import ContainerBackend


HOLD_SECONDS = 600


class ContainerInstance(GuestInstance):
    def __init__(self, backend: ContainerBackend, running: RunningContainer) -> None:
        record = running.record
        super().__init__(record.id, record.template, root_user=True)
        self._backend, self._running = backend, running
        self._instance_id, self.pause_clock = record.instance_id, running.pause_clock
        self._place = backend.records.place(record.id)
        self.descriptor_store = backend.descriptor_store(record.id)

    async def connect(self, identity: str) -> GuestConnection:
        place = place_of(identity, self.template, self._running.record.env, OOM_SCORE)
        return await GuestConnection.connect(self._place / f"{identity}.sock", place)

    async def start(self, spec: ExecSpec, *, id: ExecId, background: bool) -> Command:
        if self._running.egress.late:  # its environment says nothing of them
            spec = replace(spec, env={**certificates(TRUSTED), **spec.env})
        return await super().start(spec, id=id, background=background)

    async def set_deadline(self, deadline: float) -> None:
        # Recorded first: then a daemon that finds it dead knows that its time was over.
        before = self._backend.records.move_deadline(self.id, self._instance_id, deadline)
        try:
            await self._running.set_deadline(deadline)
        except SandboxDiedError:
            raise
        except BaseException:
            self._backend.records.move_deadline(self.id, self._instance_id, before)
            raise

    async def usage(self) -> Usage:
        try:
            return await asyncio.to_thread(_running.usage, self._running.record)
        except OSError:
            raise self.lost_error() from None

    def refusals(self) -> Refusals:
        return Refusals(self._running.record.pid)

    async def processes(self) -> tuple[Process, ...]:
        return await asyncio.to_thread(_running.table, self._running.record)

    async def posture(self) -> tuple[Check, ...]:
        allowed = caps.mask_of(*(getattr(caps, name) for name in CAPABILITIES))
        return await asyncio.to_thread(_running.posture, self._running.record, allowed)

    async def pause(self) -> Paused:
        """Pid 1 goes on, and holds the deadline of the retention."""
        return await self._running.pause()

    async def resume(self) -> float:
        await self._backend.unpause(self._running)
        return await self._running.resume()

    async def stay_awake(self) -> Callable[[], None]:
        if self.pause_clock.now:
            await self._backend.unpause(self._running)
        return await self._running.stay_awake()

    @contextlib.asynccontextmanager
    async def frozen(self) -> AsyncGenerator[None]:
        """Copy its files to its trees during a pause, whose length depends on their size."""
        backend, record = self._backend, self._running.record
        async with backend.records.alone(self.id, "hold"), self._running.hold(HOLD_SECONDS):
            # It may die meanwhile. A task that waits for its death then sees the copied files.
            with contextlib.closing(await self.connect("carrier")) as inside:
                async with backend.records.alone(self.id, "carry"):
                    await backend.transfer.bring(self.id, record.root, record.trees, owner(self.template), inside)
            yield

    async def kill(self) -> None:
        self.close_connections()
        await self._backend.kill(self.id, self._instance_id, self._running)

    async def wait_ended(self) -> Ending:
        await asyncio.shield(self._running.ended)
        await self._backend.cleanup.settled(self.id, self._instance_id)
        return await self._backend.cleanup.ending(self.id, self._instance_id)

    async def aclose(self) -> None:
        self.close_connections()
