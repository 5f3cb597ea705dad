"""Answers what the gateway asks: may this be done in that sandbox, once?"""

from __future__ import annotations

from paddock.egress._control import Claim, Claimed
from paddock.errors import PaddockError
from paddock.model import ApprovalRequest

from ._approvals import Approvals
from ._remains import has_ended
from ._store import Store

_NO = "denied"


class Judge:
    """Answers for all sandboxes of the state directory."""

    def __init__(self, store: Store, approvals: Approvals) -> None:
        self._store, self._approvals = store, approvals

    def __call__(self, claim: Claim) -> Claimed:
        row = self._store.get(claim.sandbox)
        if (
            row is None
            or has_ended(row)
            or (row.incarnation, row.sandbox.policy) != (claim.incarnation, claim.revision)
        ):
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
