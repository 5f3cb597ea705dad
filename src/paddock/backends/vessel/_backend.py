"""The base of levels whose wall is a program that runs in a jail. All that a jail does, it does for the vessel too."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import os
from pathlib import Path
from typing import Any

from paddock.backends._base import SandboxPlan
from paddock.backends.jail import JailBackend
from paddock.backends.vessel._instance import VesselInstance
from paddock.backends.vessel._orders import Orders, guest_config
from paddock.errors import NotConfigured, PaddockError
from paddock.keeper._plan import JailPlan, Tree
from paddock.model import SandboxId, Template
from paddock.storage import Pool, Templates, open_pool
from paddock.storage._config import load
from paddock.storage._kit import PLACE

_MIB = 1 << 20


class VesselBackend(JailBackend):
    """A level has `name` and `level` of its own, says how strong it is, and overrides `dress` and `orders`.

    `name` is the kind of its sandboxes in the keeper's records: another backend neither lists nor adopts them.
    """

    as_root = True
    """The pilot, and what it starts, is root of the jail where there is one."""
    extra_memory_mib = 64
    """What the wall itself needs, beside what the caller asked for."""
    extra_processes = 32

    def __init__(self, state_dir: Path, *, for_tests: bool = False) -> None:
        super().__init__(state_dir, for_tests=for_tests)
        self.directory = state_dir
        self._trees: Pool | None = None
        self._templates: Templates | None = None

    # what a level decides

    async def dress(self, plan: SandboxPlan, jail: JailPlan) -> JailPlan:
        """The vessel's jail: the sandbox's own with the kit in it and more room, unless a level says more."""
        return jail

    async def orders(self, plan: SandboxPlan, jail: JailPlan) -> Orders:
        """What the pilot in that jail is told."""
        raise NotImplementedError

    async def ready(self, plan: SandboxPlan, instance: VesselInstance) -> None:
        """The guest has greeted, and nothing was served yet. What it raises undoes the create."""

    def instance(self, id: SandboxId, template: Template, incarnation: int) -> VesselInstance:
        return VesselInstance(self, id, template, incarnation)

    # what a level uses

    def guest_config(self, plan: SandboxPlan, jail: JailPlan, streams: dict[str, object]) -> dict[str, Any]:
        """The one argument of the kit's COMMAND."""
        return guest_config(plan.template, jail, streams, root_user=self.root_user)

    @property
    def identities(self) -> tuple[str, ...]:
        return ("init", "user", "root") if self.root_user else ("init", "user")

    async def kit(self) -> str:
        """The kit's tree, built if it is not there."""
        return await asyncio.to_thread((await self.templates()).kit)

    async def templates(self) -> Templates:
        if self._templates is None:
            trees = await self.trees()
            self._templates = self._templates or Templates(trees, self.directory)
        return self._templates

    async def trees(self) -> Pool:
        """This backend's own handle on the pool."""
        if self._trees is None:
            config = load(self.directory)
            if config is None:
                raise NotConfigured(f"{self.directory} holds no pool", hint="paddock doctor")
            shown = await self.pool()
            self._trees = self._trees or open_pool(self.directory, config, os.dup(shown))  # another may have been first
        return self._trees

    # the contract

    async def create(self, plan: SandboxPlan) -> VesselInstance:
        jail = await self.dress(plan, await self.furnish(self.jail_plan(plan)))
        orders = await self.orders(plan, jail)
        instance = await self.make(plan, jail)
        assert isinstance(instance, VesselInstance)
        try:
            await instance.embark(orders, self.identities)
            await self.ready(plan, instance)
            with contextlib.suppress(PaddockError, OSError):  # whoever asks next is told
                await instance.connection("user")
        except BaseException:
            # Should the caller lose patience here too, this is still done.
            await asyncio.shield(self.start(_undo(instance)))
            raise
        return instance

    async def adopt(self, id: SandboxId) -> VesselInstance | None:
        instance = await super().adopt(id)
        assert instance is None or isinstance(instance, VesselInstance)
        if instance is not None:
            instance.listen()
        return instance

    async def aclose(self) -> None:
        await super().aclose()
        if self._templates is not None:
            self._templates.close()
        if self._trees is not None:
            self._trees.close()

    async def furnish(self, jail: JailPlan) -> JailPlan:
        """A jail with the kit in it, and room for the wall."""
        return dataclasses.replace(
            jail,
            trees=(*jail.trees, Tree(name=await self.kit(), target=PLACE, writable=False)),
            memory_bytes=jail.memory_bytes + self.extra_memory_mib * _MIB,
            processes=jail.processes + self.extra_processes,
        )


async def _undo(instance: VesselInstance) -> None:
    with contextlib.suppress(PaddockError):  # its keeper is gone: a sweep finds what is left
        await instance.kill()
    await instance.aclose()
