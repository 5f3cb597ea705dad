"""A sandbox is made again under its id, from a snapshot: the second half of a rollback, and of a waking from disk."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import NamedTuple

from paddock.backends._base import Backend, Instance
from paddock.errors import NotFound
from paddock.model import State
from paddock.storage._base import Pool

from . import _copies
from ._conduct import protected
from ._copies import Copy
from ._egress import Egress
from ._lifecycle import Lifecycle
from ._live import Live, end
from ._making import Birth
from ._nested import Nested
from ._policies import Policies
from ._secret_leases import Leases
from ._snapshot_store import SnapshotRow
from ._store import Row, Store
from ._tasks import Tasks
from ._workspace_tree import beside


class Beside(NamedTuple):
    """What is copied, and the tree whose place it is to take."""

    copy: Copy
    place: str


class Rebirth:
    def __init__(
        self,
        *,
        store: Store,
        lifecycle: Lifecycle,
        live: Live,
        pool: Callable[[], Pool],
        egress: Egress,
        policies: Policies,
        leases: Leases,
        tasks: Tasks,
        retention_seconds: float,
    ) -> None:
        self._retention = retention_seconds
        self._store, self._lifecycle, self._live, self._pool = store, lifecycle, live, pool
        self._egress, self._policies, self._leases, self._tasks = egress, policies, leases, tasks

    def trees(self, row: Row, snapshot: SnapshotRow) -> tuple[Beside, ...]:
        pool = self._pool()
        limit = row.sandbox.spec.limits.disk_mib << 20
        own = Beside(Copy(snapshot.id, beside(row.id), limit), row.id)
        if row.workspace is None or snapshot.workspace is None:
            return (own,)
        limit_bytes = pool.usage(snapshot.workspace.tree).limit_bytes
        copy = Copy(snapshot.workspace.tree, beside(row.id, workspace=True), limit_bytes)
        return own, Beside(copy, row.workspace.tree)

    async def bear(
        self, row: Row, next: Row, backend: Backend, snapshot: SnapshotRow, trees: Sequence[Beside]
    ) -> Instance:
        """Of `row`, which is dead, with the trees beside it in their places: what it is as `next`."""
        # What the daemon before this one had asked for may have come to life since.
        if (stray := await backend.adopt(row.id)) is not None:
            await end(stray)
        await backend.forget(row.id)
        _put_in_place(self._pool(), trees)
        discarding = asyncio.to_thread(_copies.discard, self._pool(), [tree.copy.name for tree in trees])
        await self._tasks.complete(discarding, name=f"discard {row.id}")
        plan = self._leases.furnished((await self._birth(next, snapshot, backend)).plan(self._retention))
        instance = await backend.create(plan)
        try:
            if row.sandbox.spec.nested:
                await Nested.furnish(instance)
            await self._reopen(row, next)
        except BaseException:
            await end(instance)
            raise
        return instance

    def admit(self, row: Row, next: Row, backend: Backend, instance: Instance) -> Row:
        """It runs."""
        running = self._lifecycle.move(row, State.RUNNING, incarnation=next.incarnation)
        self._live.admit(running, backend, instance)
        return running

    async def _birth(self, next: Row, snapshot: SnapshotRow, backend: Backend) -> Birth:
        revision = (self._store.get(next.id) or next).sandbox.policy
        policy = None if revision is None else await self._policies.of(revision)
        protect = () if policy is None else protected(policy.document, snapshot.template)
        return Birth(next, snapshot.template, backend, policy, protect)

    async def _reopen(self, row: Row, next: Row) -> None:
        """It keeps the policy that it has now: a snapshot brings none with it."""
        now = self._store.get(row.id) or row
        revision = now.sandbox.policy
        if revision is not None:
            await self._egress.close(row)
            await self._egress.open(next, await self._policies.of(revision))


def besides(row: Row) -> tuple[str, ...]:
    return beside(row.id), beside(row.id, workspace=True)


def _put_in_place(pool: Pool, trees: Sequence[Beside]) -> None:
    """By renames alone, which take no time: what was in their places is where the copies were, and is to be deleted."""
    for tree in trees:
        try:
            pool.exchange(tree.copy.name, tree.place)
        except NotFound:  # a daemon that died had emptied its place
            pool.rename(tree.copy.name, tree.place)
