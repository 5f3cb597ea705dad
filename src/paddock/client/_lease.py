"""What becomes of a command whose handle was dropped: it is let go of, as if the handle had been closed."""

from __future__ import annotations

import sys
import warnings

from paddock.model import ExecHandle

from ._bridge import LoopThread
from ._home import ending


class Lease:
    """Held by a handle and by each of its streams: who keeps a stream keeps the command. The last one lets go.

    With `warn`, somebody is told who drops a command that may still run: that kills it.
    """

    def __init__(self, loop: LoopThread, handle: ExecHandle, *, warn: bool) -> None:
        self._loop, self._handle, self._warn = loop, handle, warn
        self._held = True

    def over(self) -> None:
        """The command has ended: nobody is surprised any more."""
        self._warn = False

    def end(self) -> None:
        """The handle is closed in order."""
        self._held = False

    def __del__(self) -> None:
        if not self._held or sys.is_finalizing():
            return
        if self._warn:
            warnings.warn(f"command {self._handle.id} was never closed", ResourceWarning, stacklevel=2, source=self)
        self._loop.give_up(ending, self._handle)
