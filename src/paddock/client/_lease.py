"""What becomes of a command whose handle was dropped: it is let go of, as if the handle had been closed."""

from __future__ import annotations

import sys

from paddock.model import codec

from ._session import handle_methods

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable


class Lease:
    """Held by a handle and by each of its streams: who keeps a stream keeps the command. The last one lets go.

    With `warns`, dropping a command that may still run is a ResourceWarning: it kills the command.
    """

    def __init__(self, give_up: Callable[[bytes], None], handle: codec.Handle, *, warns: bool) -> None:
        self._give_up, self._handle, self._warns = give_up, handle, warns
        self._held = True

    @classmethod
    def none(cls) -> Lease:
        """Of a stream that something else closes."""
        lease = cls(lambda body: None, codec.Handle(handle=0), warns=False)
        lease.end()
        return lease

    def over(self) -> None:
        """The command has ended: nobody is surprised any more."""
        self._warns = False

    def end(self) -> bool:
        """The handle is closed in order. Whether it was open."""
        was_held, self._held = self._held, False
        return was_held

    def __del__(self) -> None:
        if not self._held or sys.is_finalizing():
            return
        if self._warns:
            import warnings

            warnings.warn(f"command {self._handle.id} was never closed", ResourceWarning, stacklevel=2, source=self)
        self._give_up(handle_methods(self._handle.handle, "close"))
