"""A live container. Each identity has a socket in `containers/<id>/`, so nothing has to be kept to reach it."""

from __future__ import annotations

import asyncio
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING

from paddock.backends._base import Ending
from paddock.backends._guest import GuestConnection, GuestInstance
from paddock.errors import PaddockError, SandboxDied, Unsupported
from paddock.linux import caps
from paddock.model import Check, Process, Usage

from . import _life
from ._life import Life
from ._options import CAPABILITIES

if TYPE_CHECKING:
    from ._backend import ContainerBackend


class ContainerInstance(GuestInstance):
    def __init__(self, backend: ContainerBackend, life: Life) -> None:
        record = life.record
        super().__init__(record.id, record.template, self._dial, root_user=True)
        self._backend, self._life = backend, life
        self._incarnation = record.incarnation
        self._place = backend.records.place(record.id)

    async def _dial(self, identity: str) -> GuestConnection:
        return await GuestConnection.connect(self._place / f"{identity}.sock")

    def lost_error(self) -> PaddockError:
        return SandboxDied(f"sandbox {self.id} is gone", hint="`paddock ls --all` says why")

    async def set_deadline(self, deadline: float) -> None:
        try:
            control = await self._dial("init")
        except OSError:
            raise self.lost_error() from None
        # Written first: whoever finds it dead is to know that its time was over.
        before = self._backend.move_deadline(self.id, self._incarnation, deadline)
        try:
            await control.open({"op": "deadline", "boottime": deadline}).call(dict)
        except SandboxDied:
            raise self.lost_error() from None
        except BaseException:
            self._backend.move_deadline(self.id, self._incarnation, before)
            raise
        finally:
            control.close()

    async def usage(self) -> Usage:
        try:
            return await asyncio.to_thread(_life.usage, self._life.record)
        except OSError:
            raise self.lost_error() from None

    async def processes(self) -> tuple[Process, ...]:
        return await asyncio.to_thread(_life.table, self._life.record)

    async def posture(self) -> tuple[Check, ...]:
        allowed = caps.mask_of(*(getattr(caps, name) for name in CAPABILITIES))
        return await asyncio.to_thread(_life.posture, self._life.record, allowed)

    def frozen(self) -> AbstractAsyncContextManager[None]:
        raise Unsupported(
            "a container's files are the engine's, so that no snapshot or fork can be made of them",
            hint="level='jail', 'gvisor' or 'microvm'; or keep the work in a workspace",
        )

    async def kill(self) -> None:
        self.close_connections()
        await self._backend.kill(self.id, self._incarnation, self._life)

    async def wait_ended(self) -> Ending:
        await asyncio.shield(self._life.ended)
        await self._backend.settled(self.id, self._incarnation)
        return await self._backend.ending(self.id, self._incarnation)

    async def aclose(self) -> None:
        self.close_connections()
