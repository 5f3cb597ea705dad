"""The ways out of sandboxes, whose secrets go with them."""

from __future__ import annotations

from ._egress import Egress, Snapshot
from ._secret_leases import Leases
from ._store import Row


class LeasedEgress:
    """`inner`, and the secrets of a sandbox are dropped with its ways out."""

    def __init__(self, inner: Egress, leases: Leases) -> None:
        self._inner, self._leases = inner, leases

    async def open(self, row: Row, snapshot: Snapshot) -> None:
        await self._inner.open(row, snapshot)

    async def revise(self, row: Row, snapshot: Snapshot) -> None:
        await self._inner.revise(row, snapshot)

    async def close(self, row: Row) -> None:
        self._leases.drop(row.id)
        await self._inner.close(row)


_: type[Egress] = LeasedEgress
