"""The only function that changes a State."""

from __future__ import annotations

from paddock.errors import InvalidState, NotFound
from paddock.model import LEGAL, Limit, State

from ._clock import Clock
from ._store import Row, Store


class Lifecycle:
    def __init__(self, store: Store, clock: Clock) -> None:
        self._store, self._clock = store, clock

    def move(
        self,
        id: str,
        to: State,
        *,
        limit: Limit | None = None,
        reason: str | None = None,
        release_key: bool = False,
        restoring: str | None = None,
        holder: str | None = None,
    ) -> Row:
        """The row as it is then. InvalidState: that move is not legal from where the sandbox is now.

        Other services move the same rows: the write names the state that it was decided on, and is decided again
        if that has changed.
        """
        while True:
            row = self._store.get(id)
            if row is None:
                raise NotFound(f"no sandbox {id!r}")
            if to not in LEGAL[row.state]:
                raise InvalidState(
                    f"sandbox {id} is {row.state.value}; it cannot become {to.value}", state=row.state.value
                )
            ended_at = self._clock.wall() if not LEGAL[to] else None
            if self._store.move(
                id,
                row.state,
                to,
                ended_at=ended_at,
                limit=limit,
                reason=reason,
                release_key=release_key,
                restoring=restoring,
                holder=holder,
            ):
                moved = self._store.get(id)
                assert moved is not None
                return moved
