"""Orders of the daemon as doors of the gateway."""

from __future__ import annotations

from collections.abc import Sequence
from socket import socket

import msgspec

from paddock.errors import InvalidState
from paddock.policy.egress import Snapshot

from ._approvals import Approvals
from ._authority import Authority
from ._control import Open, Record, Revise, Secret
from ._gateway import Gateway
from ._journal import AuditJournal
from ._open_door import Door
from ._secret_book import Bound, SecretBook

_bounds = msgspec.msgpack.Decoder(tuple[Bound, ...]).decode
_bound = msgspec.msgpack.Decoder(Bound).decode


class Plane:
    """What lets through or refuses. Every method may raise PaddockError."""

    def __init__(self, gateway: Gateway, journal: AuditJournal, approvals: Approvals) -> None:
        self._gateway, self._journal, self._approvals = gateway, journal, approvals
        self._books: dict[str, SecretBook] = {}
        self._watched: set[str] = set()

    async def open(self, order: Open, sockets: Sequence[socket]) -> None:
        """Return when what comes in there is served. The sockets are the gateway's then."""
        *tcp, dns_udp, dns_tcp, diag = sockets
        book = SecretBook(_bounds(order.secrets) if order.secrets else ())
        policy = Snapshot.from_bytes(order.snapshot)
        door = Door(
            sandbox=order.sandbox,
            incarnation=order.incarnation,
            first=order.first,
            tcp=tcp,
            dns_udp=dns_udp,
            dns_tcp=dns_tcp,
            diag=diag,
            policy=policy,
            authority=Authority(order.certificate, order.key),
            secrets=book,
            approvals=self._approvals,
            journal=self._journal,
        )
        await self._gateway.open(door)
        self._books[order.sandbox] = book
        await self._watch(order.sandbox, _wants_processes(policy))

    async def revise(self, order: Revise) -> None:
        """Return when the revision holds for the connections that live, too."""
        policy = Snapshot.from_bytes(order.snapshot)
        await self._gateway.revise(order.sandbox, policy)
        await self._watch(order.sandbox, _wants_processes(policy))

    async def secret(self, order: Secret) -> None:
        bound = _bound(order.secret)
        self._books[order.sandbox].put(bound)

    async def record(self, order: Record) -> bytes:
        """Return what was recorded, if it ends with this."""
        taken = self._gateway.record(order.sandbox, order.on)
        if order.on:
            return b""
        if taken is None:
            reason = f"nothing is being recorded of {order.sandbox}: nobody began, or the gateway that did has died"
            raise InvalidState(reason, hint=f"paddock record start {order.sandbox}")
        return msgspec.msgpack.encode(taken)

    async def close(self, sandbox: str) -> None:
        """Cut everything, and close the sockets."""
        self._books.pop(sandbox, None)
        await self._watch(sandbox, False)
        await self._gateway.close(sandbox)

    async def _watch(self, sandbox: str, wanted: bool) -> None:
        if wanted == (sandbox in self._watched):
            return
        (self._watched.add if wanted else self._watched.discard)(sandbox)
        await self._gateway.watch(sandbox, wanted)


def _wants_processes(policy: Snapshot) -> bool:
    audit = policy.document.audit
    return audit is not None and audit.processes
