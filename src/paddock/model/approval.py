"""A person's yes to one thing, once."""

from __future__ import annotations

import hashlib
from enum import StrEnum

from .action import Action
from .ids import ApprovalId
from .value import DatetimeField, OptionalDatetimeField, Value


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
    """One action that needs an approval, in full.

    An approval covers nothing else.

    `digest` is the SHA-256 of the canonical arguments, and `summary` describes them for a person. `sandbox` is the
    sandbox of the request, or the id of its workspace.
    """

    kind: str
    sandbox: str
    instance_id: int
    revision: str
    digest: str
    summary: str


class ApprovalAnswer(Value):
    """The answer to a request for approval.

    `granted`: the action may happen now, and uses the approval up. Otherwise `state` is pending or denied, and `id` is
    the approval's, if there is one. `reason` says more.
    """

    granted: bool
    id: str | None = None
    state: ApprovalState = ApprovalState.PENDING
    reason: str = ""


class Approval(Value):
    """Times are seconds since the epoch. `summary` has nothing in it that drives a terminal."""

    id: ApprovalId
    kind: str
    sandbox: str
    instance_id: int
    revision: str
    digest: str
    summary: str
    state: ApprovalState
    created_at: float
    expires_at: float
    decided_at: float | None = None
    decided_by: str | None = None
    reason: str | None = None
    created = DatetimeField("created_at")
    expires = DatetimeField("expires_at")
    decided = OptionalDatetimeField("decided_at")


class ListApprovals(Action[tuple[Approval, ...]], tag="approval.list", repeatable=True):
    """Return the approvals that wait for an answer, oldest first, or `all`.

    With `approval` (an id or a unique prefix) it returns that one, as soon as it has an answer, or after
    `wait_seconds`.
    """

    all: bool = False
    approval: str | None = None
    wait_seconds: float = 0.0


class GrantApproval(Action[Approval], tag="approval.grant"):
    """Grant an approval, by id or a unique prefix. It counts once, for exactly the requested action."""

    approval: str


class DenyApproval(Action[Approval], tag="approval.deny"):
    """Deny an approval, also a granted one without a use yet."""

    approval: str
    reason: str | None = None


def arguments_digest(*parts: bytes) -> str:
    """Return the SHA-256 of the canonical arguments.

    The length of each part counts, so that different lists have different digests.
    """
    digest = hashlib.sha256()
    for part in parts:
        digest.update(len(part).to_bytes(8, "big"))
        digest.update(part)
    return digest.hexdigest()
