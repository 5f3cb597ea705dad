"""The only function that changes a State."""

from __future__ import annotations

from paddock.errors import InvalidState, NotFound
from paddock.model import LEGAL, Limit, State, replace

from ._clock import Clock
from ._store import Row, Store


class Lifecycle:
    def __init__(self, store: Store, clock: Clock) -> None:
        self._store, self._clock = store, clock

    def move(
        self,
        row: Row,
        to: State,
        *,
        limit: Limit | None = None,
        reason: str | None = None,
        release_key: bool = False,
        restoring: str | None = None,
        incarnation: int | None = None,
    ) -> Row:
        """Record that the sandbox of `row` is `to` from now on, and return its row as it is then.

        InvalidState: that move is not legal from where the sandbox is now, or it was made again since `row` was read.
        There is no await between the look and the write, so nothing comes between. `incarnation`: of the one that it
        is from now on.
        """
        now = self._store.get(row.id)
        if now is None:
            raise NotFound(f"no sandbox {row.id!r}")
        if now.incarnation != row.incarnation:
            raise InvalidState(f"sandbox {row.id} was taken back to a snapshot meanwhile", state=now.state.value)
        if to not in LEGAL[now.state]:
            raise InvalidState(
                f"sandbox {row.id} is {now.state.value}; it cannot become {to.value}", state=now.state.value
            )
        ended_at = None if LEGAL[to] else self._clock.wall()
        sandbox = replace(now.sandbox, state=to, ended_at=ended_at, limit=limit, reason=reason)
        if ended_at is not None:
            sandbox = replace(sandbox, kept_until=None, left_seconds=None)
        own = now.incarnation if incarnation is None else incarnation
        moved = replace(now, sandbox=sandbox, restoring=restoring, incarnation=own)
        self._store.move(moved, release_key=release_key)
        return moved
