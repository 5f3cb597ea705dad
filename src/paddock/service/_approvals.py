"""Approvals: asked, answered by a person, used once."""

from __future__ import annotations

import os
from collections.abc import Sequence

import msgspec

from paddock.errors import ApprovalNeeded, InvalidState, PaddockError, PolicyDenied
from paddock.model import (
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

from ._approval_store import ApprovalStore, Moment
from ._clock import boot_id
from ._context import Component, Context
from ._gate import Entry
from ._handlers import handles
from ._store import LEAST_PREFIX, has_ended, the_one

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
            if os.environ.get("PADDOCK_APPROVAL_WEBHOOK"):
                from ._webhook import tell  # with all that HTTP needs

                tell(self._context, found)
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
