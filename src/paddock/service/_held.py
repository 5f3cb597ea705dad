"""A live instance as a service holds it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from paddock.backends._base import Backend, Instance
from paddock.model import Limit

from ._store import Row


class Held:
    """One live instance. `strikes` are the counters as they were last seen."""

    def __init__(self, row: Row, backend: Backend, instance: Instance, strikes: Mapping[Limit, int]) -> None:
        self.id, self.row, self.backend, self.instance = row.id, row, backend, instance
        self.limits = row.sandbox.spec.limits
        self.strikes = strikes
        self.watch: asyncio.Task[None] | None = None
        self.door: asyncio.Task[None] | None = None
        """Serves the programs inside that may have children."""
        self.dying = False
        """Somebody is killing it, and will record that."""
        self.turning = asyncio.Lock()
        """Taken while it is paused or woken from here: of many that use it at once, one wakes it."""
