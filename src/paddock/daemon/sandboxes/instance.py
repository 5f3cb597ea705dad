"""One sandbox that runs or is paused, as the daemon holds it in memory."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from paddock.backends._base import Backend, Instance
from paddock.daemon.store.database import Row

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

    def tell_of_pauses(self) -> Callable[[], None]:
        """Tell the caller for whom this task works when the sandbox is paused, until what is returned is called."""
        return self.instance.stillness.hear(self._tell_of_pause)

    def _tell_of_pause(self) -> None:
        name = self.row.sandbox.spec.name or self.id
        said = "sandbox %s is paused, and the command that you wait for stands still: paddock resume %s"
        _log.warning(said, name, name)
