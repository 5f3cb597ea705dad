"""Who made one connection: recorded when it is known and the connection has been decided on, whichever is later."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from paddock.errors import Unrecorded

PATIENCE_SECONDS = 2.0


class Maker:
    """`record(decision, origin)` raises Unrecorded; `lost` is called where that happens and nobody else hears of it."""

    def __init__(self, record: Callable[[int, dict[str, Any]], None], lost: Callable[[], None]) -> None:
        self._record, self._lost = record, lost
        self._known = asyncio.Event()
        self._origin: dict[str, Any] | None = None
        self._decision: int | None = None

    def told(self, origin: dict[str, Any]) -> None:
        self._origin = origin
        self._known.set()
        if self._decision is not None:
            try:
                self._record(self._decision, origin)
            except Unrecorded:
                self._lost()

    def decided(self, number: int) -> None:
        """Unrecorded: then nothing may happen."""
        self._decision = number
        if self._origin is not None:
            self._record(number, self._origin)

    async def known(self) -> None:
        """A program that waits for its answer is still there when it is looked for: it gets none before this returns,
        which is soon, whoever does not answer."""
        try:
            async with asyncio.timeout(PATIENCE_SECONDS):
                await self._known.wait()
        except TimeoutError:
            return
