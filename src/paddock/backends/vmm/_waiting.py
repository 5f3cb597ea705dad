"""The warm pool: VMMs that are up and have greeted, so that a create takes one (docs/design/waiting.md).

They belong to the program that made them, and end with it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from typing import TYPE_CHECKING

import msgspec

from paddock.backends._spares import Demand, Spare, Spares, common
from paddock.backends._trees import create_tree, delete_tree
from paddock.backends.base import SandboxPlan
from paddock.backends.threads import TaskSet
from paddock.backends.vmm._instance import VmmInstance, plan_of_nobody
from paddock.errors import PaddockError, SandboxError, logged
from paddock.linux import proc
from paddock.model import Limits, SandboxId, Template, replace
from paddock.storage.pool import trees as trees
from paddock.supervisor.plan import WAITING, JailPlan

if TYPE_CHECKING:
    from ._backend import VmmBackend

LIFE_SECONDS = 600.0
_LEAST_LEFT_SECONDS = 30.0
_HAND_OVER_SECONDS = 30.0
_REHEARSAL_SECONDS = 60.0
_MOST_ENVIRONMENT = 16_384
REFUSES = "/.guest/paddock-guest"
"""The guest's program, by a name that has it do nothing."""


class Kind(msgspec.Struct, frozen=True):
    """All that cannot be changed any more when a VMM is up."""

    jail: JailPlan
    limits: Limits
    template: Template

    @classmethod
    def of(cls, backend: VmmBackend, plan: SandboxPlan, jail: JailPlan) -> Kind | None:
        """Return the kind of this plan, or None if it needs something that can't change after a start."""
        bare = backend.bare(plan, jail)
        if bare is None or (kind := common(bare)) is None:
            return None
        return cls(kind, plan.spec.limits, plan.template)


class WaitingVmm(Spare[Kind], eq=False):
    """One that waits. Its tree, which is called as it is, is in use until it is deleted."""

    instance: VmmInstance
    until: float
    watch: asyncio.Task[None] | None = None

    @property
    def id(self) -> SandboxId:
        return self.instance.id


class Waiting(Spares[Kind, WaitingVmm]):
    """Those of one backend."""

    def __init__(self, backend: VmmBackend) -> None:
        super().__init__(backend.start, backend.config.spares)
        self._backend = backend
        self._tidying = TaskSet()

    async def claim(self, plan: SandboxPlan, jail: JailPlan) -> VmmInstance | None:
        """Return the sandbox of `plan`, of one that waited; None: there is none that could be it, or it has
        just died."""
        kind = Kind.of(self._backend, plan, jail)
        vmm = next((one for one in self._stock if one.kind == kind and one.until > proc.boottime()), None)
        env = self._backend.own_environment(plan)
        if vmm is None or sum(map(len, (*env, *env.values()))) > _MOST_ENVIRONMENT:
            return None
        pool = await self._backend.trees()
        if vmm not in self._stock or not trees.is_untouched(pool, plan.tree):
            return None
        self._leave(vmm)
        claiming = self._backend.start(self._hand_over(vmm, plan, jail, env))
        try:
            return await asyncio.shield(claiming)
        except asyncio.CancelledError:
            # It goes on all the same. Should the caller lose patience here too, this is still done.
            await asyncio.shield(self._backend.start(_drop(plan.id, claiming)))
            raise

    def used(self, plan: SandboxPlan, jail: JailPlan) -> None:
        """Have one of its kind wait for the next create soon: a sandbox was just made."""
        kind = Kind.of(self._backend, plan, jail)
        if kind is not None:
            self._want(kind, plan)

    async def aclose(self) -> None:
        self._closed = True
        await asyncio.gather(*self._tidying, return_exceptions=True)
        await super().aclose()

    async def _hand_over(
        self, vmm: WaitingVmm, plan: SandboxPlan, jail: JailPlan, env: dict[str, str]
    ) -> VmmInstance | None:
        """Make it the sandbox of the plan, with its tree; or end it, and leave the plan the tree that it had."""
        backend, pool = self._backend, await self._backend.trees()
        try:
            if plan.spec.mounts:
                await asyncio.to_thread(pool.add_mounts, vmm.id, len(plan.spec.mounts))
            pool.exchange(vmm.id, plan.tree)
        except (PaddockError, OSError):
            await end(backend, vmm)
            return None
        try:
            async with asyncio.timeout(_HAND_OVER_SECONDS):
                instance = await backend.pass_on(vmm.instance, plan, jail, env)
        except (PaddockError, OSError, TimeoutError):
            await backend.take_back(plan)
            pool.exchange(vmm.id, plan.tree)
            await end(backend, vmm)
            return None
        self._tidying.start(self._tidy(vmm))
        return instance

    async def _tidy(self, vmm: WaitingVmm) -> None:
        """Nothing waits under its name any more."""
        with logged("tidy up", vmm.id):
            await delete_tree(await self._backend.trees(), vmm.id)
            await self._backend.forget(vmm.id)

    async def _make(self, demand: Demand[Kind]) -> None:
        backend = self._backend
        pool = await backend.trees()
        name = f"{trees.WAITING}{os.urandom(8).hex()}"
        until = proc.boottime() + LIFE_SECONDS
        plan = plan_of_nobody(demand.plan)
        plan = replace(plan, id=SandboxId(name), hostname="waiting", tree=name, deadline=until)
        async with contextlib.AsyncExitStack() as undo:
            undo.push_async_callback(delete_tree, pool, name)
            await create_tree(pool, name, plan.template, plan.spec.limits)
            jail = await backend.build_plan(plan, await backend.furnish(backend.jail_plan(plan)))
            if Kind.of(backend, plan, jail) != demand.kind:
                raise SandboxError("its programs have changed since")  # the next create is of the new kind
            jail = jail._replace(kind=jail.kind + WAITING)
            orders = replace(await backend.orders(plan, jail), waiting=True)
            instance = await backend.start_vmm(plan, jail, orders)
            undo.pop_all()
        vmm = WaitingVmm(demand.kind, instance, until - _LEAST_LEFT_SECONDS)
        try:
            async with asyncio.timeout(_REHEARSAL_SECONDS):
                await backend.rehearse(plan, instance)
        except BaseException:
            await self._end(vmm)
            raise
        vmm.watch = backend.start(self._await_end(vmm))
        self._stock.append(vmm)

    async def _await_end(self, vmm: WaitingVmm) -> None:
        """Wait for its end: it was killed, or no create took it in time."""
        await vmm.instance.wait_ended()
        if vmm in self._stock:
            self._stock.remove(vmm)
            await self._end(vmm)

    def _leave(self, spare: WaitingVmm) -> None:
        super()._leave(spare)
        if spare.watch is not None:
            spare.watch.cancel()

    async def _end(self, spare: WaitingVmm) -> None:
        await asyncio.shield(self._backend.start(end(self._backend, spare)))

    def _has_room(self, kind: Kind) -> bool:
        """Tell whether an eighth of the machine's memory stays free beside it."""
        try:
            memory = proc.meminfo()
            return memory["MemAvailable"] - kind.jail.memory_bytes >= memory["MemTotal"] // 8
        except (OSError, ValueError, KeyError):
            return False


async def end(backend: VmmBackend, vmm: WaitingVmm) -> None:
    """End it and delete its tree. A sweep finds leftovers."""
    await backend.put_out(vmm.instance)
    await delete_tree(await backend.trees(), vmm.id)


async def _drop(id: SandboxId, claiming: asyncio.Task[VmmInstance | None]) -> None:
    with logged("end the sandbox that no caller waits for", id):
        instance = await claiming
        if instance is not None:
            await instance.kill()
            await instance.aclose()
