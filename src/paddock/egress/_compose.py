"""What the gateway's process is made of."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from socket import socket

from paddock.audit import AuditLog
from paddock.keeper import layout

from ._control import Claim, Claimed
from ._gateway import Gateway
from ._handler_host import HandlerHost
from ._journal import AuditJournal
from ._origins import Origins
from ._plane import GatewayPlane
from ._server import Plane
from ._upstream import over_tcp, system_trust
from ._world import World


async def make_plane(
    state: Path,
    claim: Callable[[Claim], Awaitable[Claimed]],
    *,
    witness: socket | None = None,
    handlers: HandlerHost | None = None,
) -> Plane:
    """Opens what it needs of the state directory; the process gives up its powers after that."""
    log = AuditLog(state / layout.AUDIT)
    world = World.of(state)
    if world is not None:
        log.event("egress.world", message=f"{layout.WORLD_SOCKET} answers in the place of everybody outside")
    gateway = Gateway(
        resolver=None if world is None else world.resolve,
        reach=over_tcp if world is None else world.reach,
        trust=system_trust if world is None else world.trust,
        origins=None if witness is None else Origins(witness),
        handlers=handlers,
    )
    return GatewayPlane(gateway, AuditJournal(log), claim)
