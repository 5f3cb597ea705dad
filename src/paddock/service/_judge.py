"""Answers what the gateway asks: may this be done in that sandbox, once?"""

from __future__ import annotations

from paddock.egress._control import Claim, Claimed
from paddock.errors import PaddockError
from paddock.model import ApprovalRequest

from ._approvals import Approvals
from ._clock import holder_alive
from ._remains import has_ended
from ._store import Store

_NOT_MINE = "unknown"
_NO = "denied"


class Judge:
    """Of one service. Of several, the one that has made the sandbox answers as long as it lives: a yes is used once."""

    def __init__(self, store: Store, approvals: Approvals, holder: str) -> None:
        self._store, self._approvals, self._holder = store, approvals, holder

    def __call__(self, claim: Claim) -> Claimed:
        row = self._store.get(claim.sandbox)
        if row is None or (row.holder != self._holder and holder_alive(row.holder)):
            return Claimed(n=claim.n, state=_NOT_MINE)
        if has_ended(row) or (row.incarnation, row.sandbox.policy) != (claim.incarnation, claim.revision):
            return Claimed(n=claim.n, state=_NO)
        request = ApprovalRequest(
            kind=claim.kind,
            sandbox=claim.sandbox,
            incarnation=claim.incarnation,
            revision=claim.revision,
            digest=claim.digest,
            summary=claim.summary,
        )
        try:
            answer = self._approvals.claim(row.sandbox.owner, request)
        except PaddockError:  # it cannot be asked, or not be recorded
            return Claimed(n=claim.n, state=_NO)
        return Claimed(n=claim.n, state=answer.state.value, approval=answer.id, reason=answer.reason)
