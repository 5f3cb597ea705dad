"""The only function that changes a State."""

from __future__ import annotations

from collections.abc import Container

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
        holder: str | None = None,
        incarnation: int | None = None,
        only_from: Container[State] = tuple(State),
    ) -> Row:
        """The row as it is then. InvalidState: that move is not legal from where the sandbox is now, or it has been
        made again since: what was decided for the one before is not for this one.

        Other services move the same rows, and `row` may be what was so a while ago: the write names the state that it
        was decided on, and is decided again if that has changed. `holder`: the service that has it in hand from now on.
        `incarnation`: of the one that it is from now on. `only_from`: of the legal ones.
        """
        current = False
        while True:
            if to in LEGAL[row.state] and row.state in only_from:
                ended_at = self._clock.wall() if not LEGAL[to] else None
                holder = holder or row.holder
                if self._store.move(
                    row.id,
                    row.state,
                    to,
                    ended_at=ended_at,
                    limit=limit,
                    reason=reason,
                    release_key=release_key,
                    restoring=restoring,
                    holder=holder,
                    of=row.incarnation,
                    incarnation=incarnation,
                ):
                    sandbox = replace(row.sandbox, state=to, ended_at=ended_at, limit=limit, reason=reason)
                    if ended_at is not None:
                        sandbox = replace(sandbox, kept_until=None, left_seconds=None)
                    own = row.incarnation if incarnation is None else incarnation
                    return replace(row, sandbox=sandbox, restoring=restoring, holder=holder, incarnation=own)
            elif current:
                raise InvalidState(
                    f"sandbox {row.id} is {row.state.value}; it cannot become {to.value}", state=row.state.value
                )
            now = self._store.get(row.id)
            if now is None:
                raise NotFound(f"no sandbox {row.id!r}")
            if now.incarnation != row.incarnation:
                raise InvalidState(f"sandbox {row.id} was taken back to a snapshot meanwhile", state=now.state.value)
            row, current = now, True
