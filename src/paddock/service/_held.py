"""A live instance as a service holds it."""

from __future__ import annotations

import asyncio
import logging
from contextlib import AbstractContextManager

from paddock.backends._base import Backend, Instance

from ._store import Row

_log = logging.getLogger("paddock")


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

    def telling_of_pauses(self) -> AbstractContextManager[None]:
        """While the block lasts, the caller for whom it works is told when the sandbox is paused."""
        name = self.row.sandbox.spec.name or self.id
        said = "sandbox %s is paused, and the command that you wait for stands still: paddock resume %s"
        return self.instance.stillness.heard(lambda: _log.warning(said, name, name))
