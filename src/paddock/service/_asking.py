"""What a person is asked for at the door, because a policy says so of the sandbox that it is about."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeAlias

from paddock.model import Action
from paddock.model.policy import Deed

from ._approvals import Approvals
from ._gate import Entry
from ._policies import Policies

Exact: TypeAlias = Callable[[], Awaitable[Sequence[str]]]


class Asking:
    """Of a workspace, the policies of all sandboxes count that have worked in it: that they have ended, or that a later
    one has a wider policy, makes nothing of what they have left there less theirs."""

    def __init__(self, policies: Policies, approvals: Approvals) -> None:
        self._policies, self._approvals = policies, approvals

    async def ask(
        self,
        deed: Deed,
        action: Action[object],
        entry: Entry,
        *,
        about: str,
        what: str,
        own: str | None = None,
        workspace: str | None = None,
        exact: Exact | None = None,
    ) -> None:
        """Ask before something of `workspace` leaves or goes, or of what is under the policy `own`. `exact` says what
        it is, where somebody is asked; without, it is `about`. ApprovalNeeded, PolicyDenied."""
        for revision in (own, *(() if workspace is None else self._policies.in_workspace(workspace))):
            if revision is not None and deed in (await self._policies.of(revision)).document.approve:
                exactly = (about,) if exact is None else await exact()
                self._approvals.require(deed, action, entry, about=about, revision=revision, what=what, exact=exactly)
                return
