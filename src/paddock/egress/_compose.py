"""What the gateway's process is made of."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path

from paddock.audit import AuditLog
from paddock.keeper import layout

from ._control import Claim, Claimed
from ._gateway import Gateway
from ._journal import AuditJournal
from ._open_door import Pages
from ._plane import GatewayPlane
from ._registry_reader import Reader
from ._server import Plane


async def make_plane(state: Path, claim: Callable[[Claim], Awaitable[Claimed]], reader: Reader) -> Plane:
    """Opens what it needs of the state directory; the process gives up its powers after that."""
    return GatewayPlane(Gateway(pages=Pages(reader=reader)), AuditJournal(AuditLog(state / layout.AUDIT)), claim)
