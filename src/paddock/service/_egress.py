"""What the service asks of whoever wires sandboxes to the gateway. See docs/design/egress.md."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from paddock.errors import NotConfigured

from ._secret_leases import Leases
from ._store import Row

if TYPE_CHECKING:
    from paddock.policy.egress import Snapshot


class Egress(Protocol):
    """The ways out of sandboxes. Called only for those that have a policy; a sandbox that `open` was not called for has
    none.

    `row.incarnation` says which sandbox of an id it is; every call is about that one alone.
    """

    async def open(self, row: Row, snapshot: Snapshot) -> None:
        """Returns when what the policy allows gets out, and nothing else does; the sandbox is there, and no command
        has run in it. Idempotent. NotConfigured (why the gateway can't be started) undoes the create."""
        ...

    async def revise(self, row: Row, snapshot: Snapshot) -> None:
        """Returns when the new revision holds for connections that live, too: what it refuses was cut. The revision
        is recorded already; if this raises, nothing may get out until it holds."""
        ...

    async def close(self, row: Row) -> None:
        """The sandbox has ended, or has no policy any more. Idempotent, and does not raise for what is gone."""
        ...


class NoEgress:
    """Nothing is wired here: a policy is refused, not ignored."""

    async def open(self, row: Row, snapshot: Snapshot) -> None:
        raise NotConfigured(
            f"sandbox {row.id} has a policy, and there is no gateway here that could keep it",
            hint="leave the policy out: then nothing gets out of the sandbox at all",
        )

    revise = open

    async def close(self, row: Row) -> None:
        return None


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


_: tuple[type[Egress], ...] = (NoEgress, LeasedEgress)
