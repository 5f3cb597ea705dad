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


async def make_plane(
    state: Path,
    claim: Callable[[Claim], Awaitable[Claimed]],
    *,
    witness: socket | None = None,
    handlers: HandlerHost | None = None,
) -> Plane:
    """Opens what it needs of the state directory; the process gives up its powers after that."""
    gateway = Gateway(origins=None if witness is None else Origins(witness), handlers=handlers)
    return GatewayPlane(gateway, AuditJournal(AuditLog(state / layout.AUDIT)), claim)
