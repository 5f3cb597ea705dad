"""What the gateway's process is made of."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path

from ._control import Claim, Claimed
from ._server import Plane
from ._shut import Shut


async def make_plane(state: Path, claim: Callable[[Claim], Awaitable[Claimed]]) -> Plane:
    """Opens what it needs of the state directory; the process gives up its powers after that."""
    return Shut()
