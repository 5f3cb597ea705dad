"""What a person is asked for at the door, because a policy says so of the sandbox that it is about."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import TypeAlias

from paddock.model import Action, DeleteSnapshot, DeleteWorkspace
from paddock.model.policy import Deed

from ._approvals import Approvals
from ._gate import Entry
from ._policies import Policies
from ._snapshot_store import SnapshotRow
from ._workspace_store import WorkspaceRow

Exact: TypeAlias = Callable[[], Awaitable[Sequence[str]]]


class Asking:
    """Of a workspace, the policies of all sandboxes count that have worked in it: that they have ended, or that a later
    one has a wider policy, makes nothing of what they have left there less theirs."""

    def __init__(self, policies: Policies, approvals: Approvals) -> None:
        self._policies, self._approvals = policies, approvals

    async def result(
        self,
        deed: Deed,
        action: Action[object],
        entry: Entry,
        *,
        about: str,
        own: str | None,
        workspace: str | None,
        exact: Exact,
        what: str,
    ) -> None:
        """Ask before something of `workspace` leaves, or of a sandbox under the policy `own`. `exact` says what it is,
        where somebody is asked. ApprovalNeeded, PolicyDenied."""
        revisions = (own, *self._of_workspace(workspace))
        await self._ask(deed, action, entry, revisions, about=about, exact=exact, what=what)

    async def workspace_deletion(self, action: DeleteWorkspace, row: WorkspaceRow, entry: Entry) -> None:
        what = f"delete the workspace {row.workspace.name} ({row.id})"
        revisions = self._of_workspace(row.id)
        await self._ask("delete", action, entry, revisions, about=row.id, exact=_exactly(row.id), what=what)

    async def snapshot_deletion(self, action: DeleteSnapshot, row: SnapshotRow, entry: Entry) -> None:
        what = f"delete the snapshot {row.id} of {row.snapshot.source}"
        revisions = (row.snapshot.policy,)
        await self._ask("delete", action, entry, revisions, about=row.id, exact=_exactly(row.id), what=what)

    def _of_workspace(self, id: str | None) -> tuple[str, ...]:
        return () if id is None else self._policies.in_workspace(id)

    async def _ask(
        self,
        deed: Deed,
        action: Action[object],
        entry: Entry,
        revisions: Iterable[str | None],
        *,
        about: str,
        exact: Exact,
        what: str,
    ) -> None:
        for revision in revisions:
            if revision is not None and deed in (await self._policies.of(revision)).document.approve:
                self._approvals.require(
                    deed, action, entry, about=about, revision=revision, what=what, exact=await exact()
                )
                return


def _exactly(*parts: str) -> Exact:
    async def said() -> Sequence[str]:
        return parts

    return said
