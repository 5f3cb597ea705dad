# ruff: noqa: S608 (statements are put together from the constants below, never from values)
"""Rows of approvals, in the store's file and transactions."""

from __future__ import annotations

import msgspec

from paddock.model import APPROVAL_MOVES, Approval, ApprovalId, ApprovalRequest, ApprovalState, replace

from ._store import Store

_COLUMNS = (
    "id, kind, sandbox, incarnation, revision, digest, summary, state, created_at, expires_at, decided_at, decided_by,"
    " reason"
)
_SELECT = f"SELECT {_COLUMNS} FROM approvals"
_IN_TIME = "boot_id = ? AND deadline > ?"
_OF_SANDBOX = "owner = :owner AND sandbox = :sandbox AND boot_id = :boot AND deadline > :clock"
_EXACTLY = (
    f"{_OF_SANDBOX} AND kind = :kind AND incarnation = :incarnation AND revision = :revision AND digest = :digest"
)


class Moment(msgspec.Struct, frozen=True):
    """Now: by the wall clock for people, by the boot's for deadlines."""

    wall: float
    boot: str
    clock: float


class ApprovalStore:
    def __init__(self, store: Store) -> None:
        self._store = store

    def claim(self, owner: str, request: ApprovalRequest, now: Moment) -> Approval | None:
        """Uses up one that was granted for exactly this: then its state is used. Otherwise the one that waits for an
        answer or was denied, or None."""
        values = _values(owner, request, now)
        with self._store.writing() as db:
            for state in (ApprovalState.GRANTED, ApprovalState.PENDING, ApprovalState.DENIED):
                sql = f"{_SELECT} WHERE {_EXACTLY} AND state = :state ORDER BY created_at, id LIMIT 1"
                found = db.execute(sql, {**values, "state": state.value}).fetchone()
                if found is None:
                    continue
                one = _approval(found)
                if state is ApprovalState.GRANTED:
                    one = replace(one, state=ApprovalState.USED)
                    sql = "UPDATE approvals SET state = ?, used_at = ? WHERE id = ?"
                    db.execute(sql, (one.state.value, now.wall, one.id))
                return one
        return None

    def ask(
        self, id: ApprovalId, owner: str, request: ApprovalRequest, now: Moment, seconds: float, most: int
    ) -> Approval | None:
        """A new one that waits; None: `most` of that sandbox wait already."""
        values = {**_values(owner, request, now), "id": id, "seconds": seconds}
        sql = f"SELECT count(*) FROM approvals WHERE {_OF_SANDBOX} AND state = 'pending'"
        if self._store.execute(sql, values).fetchone()[0] >= most:
            return None
        self._store.execute(
            "INSERT INTO approvals (id, owner, kind, sandbox, incarnation, revision, digest, summary, state,"
            " created_at, expires_at, deadline, boot_id) VALUES (:id, :owner, :kind, :sandbox, :incarnation,"
            " :revision, :digest, :summary, 'pending', :wall, :wall + :seconds, :clock + :seconds, :boot)",
            values,
        )
        return self.get(owner, id)

    def decide(
        self, owner: str, id: str, to: ApprovalState, by: str, now: Moment, seconds: float, reason: str | None
    ) -> bool:
        """False: its state does not allow that, or its time is over. From now on it holds for `seconds`."""
        states = [state.value for state, legal in APPROVAL_MOVES.items() if to in legal]
        return bool(
            self._store.execute(
                "UPDATE approvals SET state = ?, decided_at = ?, decided_by = ?, reason = ?, expires_at = ?,"
                f" deadline = ? WHERE owner = ? AND id = ? AND {_IN_TIME}"
                f" AND state IN ({', '.join('?' * len(states))})",
                (
                    *(to.value, now.wall, by, reason, now.wall + seconds, now.clock + seconds),
                    *(owner, id, now.boot, now.clock, *states),
                ),
            ).rowcount
        )

    def expire(self, now: Moment) -> None:
        """Says of those whose time is over that it is. Nothing hangs on it: whoever asks looks at the time himself."""
        self._store.execute(
            f"UPDATE approvals SET state = 'expired' WHERE state IN ('pending', 'granted') AND NOT ({_IN_TIME})",
            (now.boot, now.clock),
        )

    def forget(self, before: float) -> None:
        """What was over by then."""
        self._store.execute("DELETE FROM approvals WHERE expires_at < ?", (before,))

    def get(self, owner: str, id: str) -> Approval | None:
        found = self._store.execute(f"{_SELECT} WHERE owner = ? AND id = ?", (owner, id)).fetchone()
        return None if found is None else _approval(found)

    def by_prefix(self, owner: str, prefix: str) -> tuple[Approval, ...]:
        return tuple(map(_approval, self._store.beginning(_SELECT, owner, prefix)))

    def list(self, owner: str, *, all: bool) -> tuple[Approval, ...]:
        where = "1 = 1" if all else "state = 'pending'"
        sql = f"{_SELECT} WHERE owner = ? AND {where} ORDER BY created_at, id"
        return tuple(map(_approval, self._store.execute(sql, (owner,)).fetchall()))


def _values(owner: str, request: ApprovalRequest, now: Moment) -> dict[str, object]:
    """By what the statements call them."""
    of_request = {name: getattr(request, name) for name in ApprovalRequest.__fields__}
    return {**of_request, "owner": owner, "wall": now.wall, "boot": now.boot, "clock": now.clock}


def _approval(row: tuple[object, ...]) -> Approval:
    return msgspec.convert(dict(zip(Approval.__fields__, row, strict=True)), Approval)
