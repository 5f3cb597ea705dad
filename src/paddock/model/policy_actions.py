"""Verbs of policies."""

from __future__ import annotations

from .action import Action
from .value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .policy import PolicyDocument
    from .sandbox import Sandbox


class PolicyRevision(Value):
    """What a sandbox is held to. `revision` is the digest of the canonical `document`; both None: no network."""

    revision: str | None = None
    document: PolicyDocument | None = None


class SetPolicy(Action["Sandbox"], tag="policy.set"):
    """Returns when the new one holds, for connections that are open as well. None: no network from now on.

    With `expect_revision` it is refused if the policy is another one by now."""

    sandbox: str
    policy: PolicyDocument | None = None
    expect_revision: str | None = None


class GetPolicy(Action[PolicyRevision], tag="policy.get", repeatable=True):
    sandbox: str
