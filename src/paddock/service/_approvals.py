# ruff: noqa: S608 (statements are put together from the constants below, never from values)
"""Approvals: asked, answered by a person, used once; and their rows in the store's file."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from paddock.errors import ApprovalNeeded, InvalidState, PaddockError, PolicyDenied
from paddock.model import (
    APPROVAL_MOVES,
    Action,
    Approval,
    ApprovalAnswer,
    ApprovalId,
    ApprovalRequest,
    ApprovalState,
    DenyApproval,
    GrantApproval,
    ListApprovals,
    Noun,
    mint,
    replace,
)
from paddock.model.approval import arguments_digest

from ._clock import boot_id
from ._context import Component, Context
from ._gate import Entry
from ._handlers import handles
from ._store import LEAST_PREFIX, Store, has_ended, the_one

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
        return self._store.one(_approval, f"{_SELECT} WHERE owner = ? AND id = ?", (owner, id))

    def by_prefix(self, owner: str, prefix: str) -> tuple[Approval, ...]:
        return tuple(map(_approval, self._store.beginning(_SELECT, owner, prefix)))

    def list(self, owner: str, *, all: bool) -> tuple[Approval, ...]:
        where = "1 = 1" if all else "state = 'pending'"
        sql = f"{_SELECT} WHERE owner = ? AND {where} ORDER BY created_at, id"
        return self._store.every(_approval, sql, (owner,))


def _values(owner: str, request: ApprovalRequest, now: Moment) -> dict[str, object]:
    """By what the statements call them."""
    of_request = {name: getattr(request, name) for name in ApprovalRequest.__fields__}
    return {**of_request, "owner": owner, "wall": now.wall, "boot": now.boot, "clock": now.clock}


def _approval(row: tuple[object, ...]) -> Approval:
    return msgspec.convert(dict(zip(Approval.__fields__, row, strict=True)), Approval)


WAIT_SECONDS = 900.0
"""So long a question waits for an answer, and an answer for what was asked to be done."""
MOST_WAITING = 32
KEPT_SECONDS = 7 * 86_400
_SUMMARY_CHARS = 512
_NO = ApprovalAnswer(granted=False, state=ApprovalState.DENIED)
_canonical = msgspec.json.Encoder(order="deterministic").encode


class Approvals(Component):
    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._rows, self._boot = ApprovalStore(self._store), boot_id()

    @handles(ListApprovals)
    async def list(self, action: ListApprovals, entry: Entry) -> tuple[Approval, ...]:
        owner = self._owner(entry)
        return self._rows.list(owner, all=action.all) if action.approval is None else (self._find(action, owner),)

    def claim(self, owner: str, request: ApprovalRequest) -> ApprovalAnswer:
        """Whether it may be done now. A yes is used up by this; without one a person is asked, once."""
        request = replace(request, summary=cleaned(request.summary))
        now = self._now()
        found = self._rows.claim(owner, request, now)
        if found is None:
            self._rows.forget(now.wall - KEPT_SECONDS)
            id = ApprovalId(mint(Noun.APPROVAL))
            found = self._rows.ask(id, owner, request, now, WAIT_SECONDS, MOST_WAITING)
            if found is None:
                reason = f"{MOST_WAITING} others of this sandbox wait for an answer already"
                return ApprovalAnswer(granted=False, state=ApprovalState.DENIED, reason=reason)
            self._audit.event("approval.asked", sandbox=request.sandbox, approval=found.id, what=_told(request))
            if self._config.approval_webhook is not None:
                from ._webhook import Webhook  # with all that HTTP needs

                Webhook(self._context).asked(found)
        elif found.state is ApprovalState.USED:
            # Recorded before it happens; if it cannot be, it is used up all the same.
            self._audit.event("approval.used", sandbox=request.sandbox, approval=found.id, what=_told(request))
        return ApprovalAnswer(
            granted=found.state is ApprovalState.USED, id=found.id, state=found.state, reason=found.reason or ""
        )

    def judge(self, request: ApprovalRequest) -> ApprovalAnswer:
        """Answer what the gateway asks: may this be done in that sandbox, once?"""
        row = self._store.get(request.sandbox)
        if (
            row is None
            or has_ended(row)
            or (row.incarnation, row.sandbox.policy) != (request.incarnation, request.revision)
        ):
            return _NO
        try:
            return self.claim(row.sandbox.owner, request)
        except PaddockError:  # it cannot be asked, or not be recorded
            return _NO

    def require(
        self,
        kind: str,
        action: Action[object],
        entry: Entry,
        *,
        about: str,
        revision: str,
        what: str,
        incarnation: int = 0,
        exact: Sequence[str] = (),
    ) -> None:
        """Of an action at the door: ApprovalNeeded until a person has said yes to exactly this one; then once. `exact`:
        what it is about at this moment, beyond its own arguments."""
        request = ApprovalRequest(
            kind=kind,
            sandbox=about,
            incarnation=incarnation,
            revision=revision,
            digest=arguments_digest(kind.encode(), _canonical(action), *(part.encode() for part in exact)),
            summary=what,
        )
        answer = self.claim(entry.principal.id, request)
        if answer.granted:
            return
        if answer.state is ApprovalState.DENIED:
            raise PolicyDenied(
                f"{cleaned(what)}: somebody said no" + (f": {answer.reason}" if answer.reason else ""), rule="approvals"
            )
        raise ApprovalNeeded(
            f"{cleaned(what)}: a person has to say yes first",
            hint=f"paddock approvals approve {answer.id}, then the same again",
            approval=answer.id,
        )

    @handles(GrantApproval, DenyApproval)
    async def decide(self, action: GrantApproval | DenyApproval, entry: Entry) -> Approval:
        owner = self._owner(entry)
        one = self._find(action, owner)
        to, reason = ApprovalState.GRANTED, None
        if isinstance(action, DenyApproval):
            to, reason = ApprovalState.DENIED, None if action.reason is None else cleaned(action.reason)
        if not self._rows.decide(owner, one.id, to, entry.principal.id, self._now(), WAIT_SECONDS, reason):
            now = self._rows.get(owner, one.id) or one
            raise InvalidState(
                f"approval {one.id} is {now.state.value}" + (f" by {now.decided_by}" if now.decided_by else ""),
                hint="what asked for it has to ask again",
            )
        entry.sandbox = one.sandbox if one.sandbox.startswith(Noun.SANDBOX) else None
        entry.done({"approval": one.id, "kind": one.kind, "digest": one.digest})
        return self._find(action, owner)

    def _owner(self, entry: Entry) -> str:
        if entry.principal.sandbox is not None:  # whatever a policy says
            raise PolicyDenied("nobody inside a sandbox sees or answers what a person is asked", rule="approvals")
        self._rows.expire(self._now())
        return entry.principal.id

    def _find(self, action: ListApprovals | GrantApproval | DenyApproval, owner: str) -> Approval:
        reference = action.approval or ""
        found = self._rows.get(owner, reference)
        if found is not None:
            return found
        prefix = reference.startswith(Noun.APPROVAL) and len(reference) >= LEAST_PREFIX
        several = self._rows.by_prefix(owner, reference) if prefix else ()
        return the_one(several, "approval", reference, hint="paddock approvals ls --all")

    def _now(self) -> Moment:
        return Moment(self._clock.wall(), self._boot, self._clock.boottime())


def cleaned(text: str) -> str:
    """Bounded, and nothing in it moves a cursor or reorders what is read: a sandbox may have written it."""
    plain = "".join(character if character.isprintable() else "\N{REPLACEMENT CHARACTER}" for character in text)
    return plain if len(plain) <= _SUMMARY_CHARS else plain[: _SUMMARY_CHARS - 1] + "…"


def _told(request: ApprovalRequest) -> dict[str, object]:
    return {
        "kind": request.kind,
        "digest": request.digest,
        "summary": request.summary,
        "revision": request.revision,
        "incarnation": request.incarnation,
    }
