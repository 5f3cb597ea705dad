"""Actions on policies, and on recordings of a sandbox's traffic as a cassette."""

from __future__ import annotations

from .action import SandboxAction
from .value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .policy import PolicyDocument, Recorded
    from .sandbox import Sandbox


class PolicyRevision(Value):
    """The policy of a sandbox. `revision` is the digest of the canonical `document`. Both are None without a policy.

    Example:
        ```python
        current = local().perform(GetPolicy(sandbox=sandbox.id))
        print(current.revision == sandbox.policy)  # True
        ```
    """

    revision: str | None = None
    document: PolicyDocument | None = None


class SetPolicy(SandboxAction["Sandbox"], tag="policy.set"):
    """Set a sandbox's policy.

    It returns when the policy is in force, also for open connections. None: no network.

    With `expect_revision` it fails if the sandbox has another policy by now.
    """

    policy: PolicyDocument | None = None
    expect_revision: str | None = None


class GetPolicy(SandboxAction[PolicyRevision], tag="policy.get", repeatable=True): ...


class Recording(Value):
    """`exchanges` in the order of their answers' ends, as the sandbox saw them: without values of secrets, and
    with `paddock-secret-` and the name of one in the place of its placeholder. `omitted`: those that
    are not there, and why."""

    exchanges: tuple[Recorded, ...] = ()
    omitted: tuple[str, ...] = ()


class StartRecording(SandboxAction[None], tag="recording.start"):
    """Start to record the traffic of a sandbox. If a recording is under way, start it anew."""


class TakeRecording(SandboxAction[Recording], tag="recording.take"):
    """Return a recording, and end it. Raises InvalidStateError without a recording, or if its gateway has died."""
