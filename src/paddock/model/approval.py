"""A person's yes to one thing, once."""

from __future__ import annotations

import hashlib
from enum import StrEnum

from .action import Action
from .ids import ApprovalId
from .value import Moment, PerhapsMoment, Value


class ApprovalState(StrEnum):
    PENDING = "pending"
    GRANTED = "granted"
    DENIED = "denied"
    USED = "used"
    EXPIRED = "expired"


# The lifecycle, as data: every legal move and nothing else.
APPROVAL_MOVES: dict[ApprovalState, frozenset[ApprovalState]] = {
    ApprovalState.PENDING: frozenset({ApprovalState.GRANTED, ApprovalState.DENIED, ApprovalState.EXPIRED}),
    ApprovalState.GRANTED: frozenset({ApprovalState.USED, ApprovalState.DENIED, ApprovalState.EXPIRED}),
    ApprovalState.DENIED: frozenset(),
    ApprovalState.USED: frozenset(),
    ApprovalState.EXPIRED: frozenset(),
}


class ApprovalRequest(Value):
    """What somebody wants to do, exactly: an approval of anything else is none of this.

    `digest` is the SHA-256 of the canonical arguments, `summary` what a person is shown of them. `sandbox` is where it
    is asked, or the id of the workspace that it is about.
    """

    kind: str
    sandbox: str
    incarnation: int
    revision: str
    digest: str
    summary: str


class ApprovalAnswer(Value):
    """`granted`: it may be done now, and the approval is used up. Otherwise `state` is pending or denied, and `id` that
    of the approval, if there is one; `reason` says more."""

    granted: bool
    id: str | None = None
    state: ApprovalState = ApprovalState.PENDING
    reason: str = ""


class Approval(Value):
    """Times are seconds since the epoch. `summary` has nothing in it that drives a terminal."""

    id: ApprovalId
    kind: str
    sandbox: str
    incarnation: int
    revision: str
    digest: str
    summary: str
    state: ApprovalState
    created_at: float
    expires_at: float
    decided_at: float | None = None
    decided_by: str | None = None
    reason: str | None = None
    created = Moment("created_at")
    expires = Moment("expires_at")
    decided = PerhapsMoment("decided_at")


class ListApprovals(Action[tuple[Approval, ...]], tag="approval.list", repeatable=True):
    """Oldest first: those that wait for an answer, or `all` that are known; with `approval` that one, by its id or a
    unique prefix, when it is answered, or after `wait_seconds` as it is."""

    all: bool = False
    approval: str | None = None
    wait_seconds: float = 0.0


class GrantApproval(Action[Approval], tag="approval.grant"):
    """Once, for exactly what was asked. By an id or a unique prefix."""

    approval: str


class DenyApproval(Action[Approval], tag="approval.deny"):
    """Also one that was granted and not used yet."""

    approval: str
    reason: str | None = None


def arguments_digest(*parts: bytes) -> str:
    """Of the canonical arguments. Each part counts with its length, so that no two lists of them read the same."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(len(part).to_bytes(8, "big"))
        digest.update(part)
    return digest.hexdigest()
