"""A machine that stands, with its state saved, for as long as whoever asked for it stays on the line."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from ._connection import Channel, Handler
from ._faults import Fault

NO_ROOM = "there is no room"
"""So begins why, where the disk is full."""


class Machine(Protocol):
    def thaw(self, done: Callable[[str | None], None]) -> None:
        """Goes on, as if it had never stood."""
        ...


class Freeze(Handler):
    """`stands` is called once it does. It goes on when the channel closes; `for_good` means: never."""

    def __init__(self, machine: Machine, channel: Channel, *, for_good: bool) -> None:
        self._machine, self._channel, self._for_good = machine, channel, for_good
        self._closing = self._stands = False

    def stands(self, why: str | None) -> None:
        self._stands = why is None
        if why is not None:
            first = why.partition("\n")[0]
            words = f"its memory could not be saved: {first}"[:500]
            full = why.startswith(NO_ROOM)
            self._channel.end(Fault("file", words, name="ENOSPC") if full else Fault("invalid_state", words))
            self._machine.thaw(_pass_over)
        elif self._closing:
            self.close()
        else:
            self._channel.reply({})

    def close(self) -> None:
        self._closing = True
        if self._for_good:
            self._channel.end()
        elif self._stands:
            self._stands = False
            self._machine.thaw(self._over)

    def _over(self, why: str | None) -> None:
        self._channel.end(None if why is None else Fault("invalid_state", f"it stays frozen: {why}"[:500]))


def _pass_over(why: str | None) -> None: ...
