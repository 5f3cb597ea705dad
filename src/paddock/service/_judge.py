"""Answers what the gateway asks: may this be done in that sandbox, once?"""

from __future__ import annotations

from paddock.egress._control import Claim, Claimed
from paddock.errors import PaddockError
from paddock.model import ApprovalRequest

from ._approvals import Approvals
from ._remains import has_ended
from ._store import Store

_NO = Claimed(state="denied")


def judge(store: Store, approvals: Approvals, claim: Claim) -> Claimed:
    row = store.get(claim.sandbox)
    if row is None or has_ended(row) or (row.incarnation, row.sandbox.policy) != (claim.incarnation, claim.revision):
        return _NO
    request = ApprovalRequest(
        kind=claim.kind,
        sandbox=claim.sandbox,
        incarnation=claim.incarnation,
        revision=claim.revision,
        digest=claim.digest,
        summary=claim.summary,
    )
    try:
        answer = approvals.claim(row.sandbox.owner, request)
    except PaddockError:  # it cannot be asked, or not be recorded
        return _NO
    return Claimed(state=answer.state.value, approval=answer.id, reason=answer.reason)
