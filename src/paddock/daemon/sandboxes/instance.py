"""Hold one running or paused sandbox in memory."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from paddock.backends.base import Backend, Instance
from paddock.daemon.store.database import Row

_log = logging.getLogger("paddock")


class RunningSandbox:
    """One running or paused sandbox: its row, its backend, and its instance there."""

    def __init__(self, row: Row, backend: Backend, instance: Instance) -> None:
        self.id, self.row, self.backend, self.instance = row.id, row, backend, instance
        self.limits = row.sandbox.spec.limits
        self.outputs_left: int | None = None
        """Bytes that the outputs of its commands may still take on the host's disk. None: not counted yet."""
        self.watch: asyncio.Task[None] | None = None
        self.server: asyncio.Task[None] | None = None
        """Serves the programs inside that may create nested sandboxes."""
        self.lacks_bash = False
        self.dying = False
        """A verb is killing it, and will record that."""

    def tell_of_pauses(self) -> Callable[[], None]:
        """Warn the caller of this task when the sandbox is paused. Call the returned function to stop."""
        return self.instance.pause_clock.hear(self._tell_of_pause)

    def _tell_of_pause(self) -> None:
        name = self.row.sandbox.spec.name or self.id
        text = "sandbox %s is paused, and the command that you wait for stands still: paddock resume %s"
        _log.warning(text, name, name)
