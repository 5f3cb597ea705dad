"""Fork: sandboxes that begin with the files of one that runs, all of one instant."""

from __future__ import annotations

from paddock.errors import InvalidState
from paddock.model import ForkSandbox, Sandbox, replace

from . import _copies, _validate
from ._conduct import protected
from ._context import Component, Context
from ._gate import Entry
from ._handlers import handles
from ._making import Birth, Making
from ._nested import Allotment
from ._policies import Policies
from ._sandboxes import Sandboxes
from ._snapshots import Snapshots
from ._tasks import in_thread

MOST = 1000


class Forks(Component):
    def __init__(
        self,
        context: Context,
        sandboxes: Sandboxes,
        making: Making,
        snapshots: Snapshots,
        policies: Policies,
        allotment: Allotment,
    ) -> None:
        super().__init__(context)
        self._sandboxes, self._making = sandboxes, making
        self._snapshots, self._policies, self._allotment = snapshots, policies, allotment

    @handles(ForkSandbox)
    async def fork(self, action: ForkSandbox, entry: Entry) -> tuple[Sandbox, ...]:
        parent, held = await self._sandboxes.reach(action.sandbox, entry)
        _validate.check_count(action.count, MOST)
        held.backend.capabilities.require("freeze", held.backend.name)
        of = parent.sandbox
        ttl = of.spec.ttl_seconds if action.ttl_seconds is None else action.ttl_seconds
        _validate.check_ttl(ttl)
        persistent = of.spec.persistent if action.persistent is None else action.persistent
        spec = replace(of.spec, name=None, ttl_seconds=ttl, workspace=None, persistent=persistent)
        outer, owner = self._allotment.outer(entry.principal), of.owner
        if outer is not None:
            spec, owner = self._allotment.of_fork(outer, spec, action.count), entry.principal.id
        template = held.instance.template
        policy, protect = None, ()
        if of.policy is not None:
            policy = await self._policies.of(of.policy)
            protect = protected(policy.document, template)
        if outer is not None:  # children of one have no network
            policy = None
        if (full := self._making.full(spec, action.count)) is not None:
            raise full
        rows = [
            self._making.row(
                spec, template, owner, of.backend, of.level, parent.id, copy_of=parent.workspace, policy=policy
            )
            for _ in range(action.count)
        ]
        births = [Birth(row, template, held.backend, policy, protect, inherits=True) for row in rows]
        for birth in births:
            self._store.add(birth.row)
        limit = spec.limits.disk_mib << 20

        async def fill() -> None:
            pool, (first, *others) = self._pool(), rows
            copies = _copies.plan(pool, parent.id, first.id, limit, parent.workspace, first.workspace)
            async with self._sandboxes.alone(parent.id, entry) as (_, held):
                await self._snapshots.copy(held, copies)
            more = [_copies.plan(pool, first.id, o.id, limit, first.workspace, o.workspace) for o in others]
            await in_thread(lambda: [_copies.make(pool, copies) for copies in more])

        def check() -> None:
            now = self._store.get(parent.id)
            if policy is not None and now is not None and now.sandbox.policy != policy.revision:
                raise InvalidState(f"the policy of {parent.id} was changed while it was forked", hint="fork again")

        def recorded() -> None:
            entry.done({"children": [birth.row.id for birth in births]})

        return tuple(row.sandbox for row in await self._making.bear(births, fill, recorded, check=check))
