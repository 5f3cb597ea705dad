"""What a person is asked for at the door, because a policy says so of the sandbox that it is about."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import TypeAlias

from paddock.model import Action, DeleteSnapshot, DeleteWorkspace
from paddock.model.policy import Deed

from ._approvals import Approvals
from ._gate import Entry
from ._policies import Policies
from ._policy_store import PolicyStore
from ._result_source import Source
from ._snapshots import Snapshots
from ._store import Store
from ._workspaces import Workspaces

Exact: TypeAlias = Callable[[], Awaitable[Sequence[str]]]


class Asking:
    """Of a workspace, the policies of all sandboxes count that have worked in it: that they have ended, or that a later
    one has a wider policy, makes nothing of what they have left there less theirs."""

    def __init__(self, *, store: Store, policies: Policies, approvals: Approvals) -> None:
        self._rows, self._policies, self._approvals = PolicyStore(store), policies, approvals

    async def result(
        self, deed: Deed, action: Action[object], source: Source, entry: Entry, *, exact: Exact, what: str
    ) -> None:
        """Before something leaves. `exact` says what it is, where somebody is asked. ApprovalNeeded, PolicyDenied."""
        own = None if source.running is None else source.running[0].sandbox.policy
        revisions = self._of_workspace(None if source.begun is None else source.begun.id)
        await self._ask(deed, action, entry, (own, *revisions), about=source.id, exact=exact, what=what)

    async def workspace_deletion(self, action: DeleteWorkspace, workspaces: Workspaces, entry: Entry) -> None:
        row = workspaces.find(action.workspace, entry.principal.id)
        revisions, name = self._of_workspace(row.id), row.workspace.name
        what = f"delete the workspace {name} ({row.id})"
        await self._ask("delete", action, entry, revisions, about=row.id, exact=_exactly(row.id), what=what)

    async def snapshot_deletion(self, action: DeleteSnapshot, snapshots: Snapshots, entry: Entry) -> None:
        row = snapshots.find(action.snapshot, entry.principal.id)
        what = f"delete the snapshot {row.id} of {row.snapshot.source}"
        await self._ask(
            "delete", action, entry, (row.snapshot.policy,), about=row.id, exact=_exactly(row.id), what=what
        )

    def _of_workspace(self, id: str | None) -> tuple[str, ...]:
        return () if id is None else self._rows.in_workspace(id)

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
