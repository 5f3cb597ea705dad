"""A live instance as a service holds it."""

from __future__ import annotations

import asyncio

from paddock.backends._base import Backend, Instance

from ._store import Row


class Held:
    """One live instance."""

    def __init__(self, row: Row, backend: Backend, instance: Instance) -> None:
        self.id, self.row, self.backend, self.instance = row.id, row, backend, instance
        self.limits = row.sandbox.spec.limits
        self.watch: asyncio.Task[None] | None = None
        self.door: asyncio.Task[None] | None = None
        """Serves the programs inside that may have children."""
        self.dying = False
        """A verb is killing it, and will record that."""
