"""What tests ask of spares."""

from __future__ import annotations

import asyncio
from typing import Any

from paddock.backends._spares import Spares


async def settled(spares: Spares[Any, Any]) -> None:
    """Return when no spare is being made."""
    while spares._making is not None and not spares._making.done():
        await asyncio.wait((spares._making,))
