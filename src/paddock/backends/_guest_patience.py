"""Waiting for a guest that may have been stopped, or lies: while it gives signs of life, and not without end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from paddock.errors import GuestLost

if TYPE_CHECKING:
    from ._guest_channel import Channel
    from ._guest_connection import GuestConnection


class Patience:
    """While it is entered, `channel` is given up, with GuestLost, when its guest is silent for `patience_seconds`, and
    after `most_seconds` even if it is not.

    Half of the first is for silence, the other half for the answer to a ping: work that takes long and says nothing
    goes on. Time in which the sandbox or this process stands still counts for neither, and both begin again when
    `progress` has another value.
    """

    def __init__(
        self,
        connection: GuestConnection,
        channel: Channel,
        most_seconds: float,
        progress: Callable[[], object] = lambda: None,
    ) -> None:
        self._connection = connection
        self._channel = channel
        self._loop = asyncio.get_running_loop()
        self._half = connection.patience_seconds / 2
        self._most = self._left = most_seconds
        self._asked: float | None = None
        self._progress, self._seen = progress, progress()

    def __enter__(self) -> None:
        self._since = self._looked_at = self._loop.time()
        self._timer = self._loop.call_later(self._half, self._look)

    def __exit__(self, *_: object) -> None:
        self._timer.cancel()

    def _look(self) -> None:
        now = self._loop.time()
        before, self._seen = self._seen, self._progress()
        if self._seen != before:
            self._asked, self._since, self._left = None, now, self._most
        elif self._connection.stillness.now:  # it can say nothing, and that is known
            self._asked, self._since = None, now
        else:
            self._left -= min(now - self._looked_at, 2 * self._half)  # a look that comes late counts as two at most
        self._looked_at = now
        heard = max(self._since, self._connection.heard_at)
        if self._asked is not None and heard < self._asked:
            seconds = self._connection.patience_seconds
            self._channel.give_up(
                GuestLost(
                    f"what serves the sandbox inside has not answered for {seconds:g} s: perhaps it was stopped there",
                    hint="what was asked may have been done in part: look, and try again, or kill the sandbox",
                )
            )
            return
        if self._left <= 0:
            self._channel.give_up(
                GuestLost(
                    f"what serves the sandbox inside answers, but has not done in {self._most:g} s what it was asked",
                    hint="what was asked may have been done in part: look, and try again, or kill the sandbox",
                    answers=True,
                )
            )
            return
        # Not before it was asked: it may be this process that slept.
        self._asked = None
        left = heard + self._half - self._loop.time()
        if left <= 0:
            self._asked, left = self._loop.time(), self._half
            self._connection.ping()
        self._timer = self._loop.call_later(left, self._look)
