"""Verbs of policies, and of recording what the requests of a sandbox were answered, as a cassette."""

from __future__ import annotations

from .action import Action
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


class SetPolicy(Action["Sandbox"], tag="policy.set"):
    """Returns when the new one holds, for connections that are open as well. None: no network from now on.

    With `expect_revision` it is refused if the policy is another one by now."""

    sandbox: str
    policy: PolicyDocument | None = None
    expect_revision: str | None = None


class GetPolicy(Action[PolicyRevision], tag="policy.get", repeatable=True):
    sandbox: str


class Recording(Value):
    """`exchanges` in the order of their answers' ends, as the sandbox saw them: without values of secrets, and
    with `paddock-secret-` and the name of one in the place of its placeholder. `omitted`: those that
    are not there, and why."""

    exchanges: tuple[Recorded, ...] = ()
    omitted: tuple[str, ...] = ()


class StartRecording(Action[None], tag="recording.start"):
    """From now on, and from the beginning if it was under way."""

    sandbox: str


class TakeRecording(Action[Recording], tag="recording.take"):
    """And ends it. InvalidStateError: nothing was being recorded, or the gateway that did has died."""

    sandbox: str
