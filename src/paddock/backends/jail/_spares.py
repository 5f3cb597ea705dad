"""Keep complete spares of jails (docs/decisions/0018-complete-spares.md).

A spare has the id of its later sandbox, and so its tree, host name and socket directory. The supervisor holds it
without a record: it ends with the supervisor and with the daemon's connection.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from paddock.backends._spares import Demand, Spare, Spares, common
from paddock.backends._trees import create_tree, delete_tree
from paddock.backends.base import SandboxPlan
from paddock.errors import logged
from paddock.model import IdPrefix, SandboxId, mint, replace
from paddock.supervisor.plan import JailPlan

if TYPE_CHECKING:
    from paddock.backends.jail.backend import JailBackend

LIFE_SECONDS = 30.0
"""A spare sees the machine's programs as they were when it was made, and it costs memory."""


class JailSpare(Spare[JailPlan], eq=False):
    """A complete spare. `kind` is its plan without what a sandbox gets when it takes the spare."""

    id: SandboxId
    until: float


def kind_of(backend: JailBackend, plan: SandboxPlan) -> JailPlan | None:
    """Return the settings that a spare for `plan` must have. None: no spare could become it."""
    made_of_nothing = not (plan.begun or plan.instance_id or plan.trees or plan.protect or plan.spec.mounts)
    if not made_of_nothing or plan.hostname != host_name(plan.id):
        return None
    kind = common(backend.jail_plan(plan))
    return None if kind is None else kind._replace(retention_seconds=1.0)


def host_name(id: str) -> str:
    """Return the name that a sandbox has if its caller gives it none."""
    return id.replace("_", "-")


class JailSpares(Spares[JailPlan, JailSpare]):
    """Those of one backend."""

    quiet_seconds = 0.03

    def __init__(self, backend: JailBackend, count: int | None) -> None:
        super().__init__(backend.start, count)
        self._backend = backend
        self._taken: dict[SandboxId, JailSpare] = {}

    def take(self, plan: SandboxPlan) -> SandboxId | None:
        """Return the id of a spare that can become the sandbox of `plan`, if that takes its id. Its tree exists.

        It belongs to the caller: `create`, `give_back` or `forget` follows. Return None without such a spare.
        """
        if (kind := kind_of(self._backend, plan)) is None:
            return None
        self._want(kind, plan)
        spare = next((one for one in self._stock if one.kind == kind), None)
        if spare is None:
            return None
        self._leave(spare)
        self._taken[spare.id] = spare
        return spare.id

    def give_back(self, id: SandboxId) -> None:
        """Put back a spare that was taken and isn't used."""
        self._put(self._taken.pop(id))

    async def claim(self, id: SandboxId) -> bool:
        """Tell whether `id` was taken; the caller commits it now."""
        if self._taken.pop(id, None) is None:
            return False
        (await self._backend.trees()).in_use.discard(id)  # by now a row says that it is needed
        return True

    def lost(self) -> None:
        """Delete the trees of all: they have ended with their supervisor."""
        for spare in list(self._stock):
            self._leave(spare)
            self._start(self._delete(spare.id))

    async def _make(self, demand: Demand[JailPlan]) -> None:
        backend, id = self._backend, SandboxId(mint(IdPrefix.SANDBOX))
        spec = replace(demand.plan.spec, env={}, idle_seconds=None)
        plan = replace(demand.plan, id=id, hostname=host_name(id), tree=id, deadline=0.0, parent=None, spec=spec)
        jail = backend.jail_plan(plan)
        pool = await backend.trees()
        try:
            await create_tree(pool, id, plan.template, spec.limits)
            await backend.supervisor.request("prepare", plan=jail.to_message())
        except BaseException:
            await asyncio.shield(self._start(self._drop(id)))
            raise
        self._put(JailSpare(demand.kind, id, asyncio.get_running_loop().time() + LIFE_SECONDS))

    def _put(self, spare: JailSpare) -> None:
        self._stock.append(spare)
        asyncio.get_running_loop().call_at(spare.until, self._expire, spare)

    def _expire(self, spare: JailSpare) -> None:
        if spare in self._stock:
            self._leave(spare)
            self._start(self._drop(spare.id))

    async def _end(self, spare: JailSpare) -> None:
        await asyncio.shield(self._start(self._drop(spare.id)))

    async def _drop(self, id: SandboxId) -> None:
        if self._backend.supervisor.connected:  # else it has ended with the connection
            with logged("forget the spare", id):
                await self._backend.supervisor.request("forget", id=id)
        await self._delete(id)

    async def _delete(self, id: SandboxId) -> None:
        await delete_tree(await self._backend.trees(), id)
