"""What a workspace begins with: nothing, or a commit of a repository, which it needs from then on."""

from __future__ import annotations

from paddock.errors import InternalError
from paddock.model import Acquired, OpenWorkspace, Principal, RepositoryId, replace

from ._bases import Base
from ._context import Component, Context
from ._gate import Entry
from ._shelf import Shelf
from ._tasks import in_thread
from ._workspace_store import WorkspaceRow, WorkspaceStore


class Grounds(Component):
    def __init__(self, context: Context, shelf: Shelf) -> None:
        super().__init__(context)
        self._shelf, self._rows = shelf, WorkspaceStore(self._store)

    async def find(self, action: OpenWorkspace, principal: Principal) -> Acquired | None:
        """The commit that a new workspace begins with, here by now; `branch` is what it will be on."""
        if action.url is None:
            return None
        ref = action.branch if action.ref is None else action.ref
        found = await self._shelf.repositories.acquire(action.url, ref, action.max_age_seconds, principal)
        return replace(found, branch=action.branch or found.branch or action.name)

    def spelling(self, url: str, principal: Principal) -> str:
        """The one under which repositories are recorded, without a credential."""
        from paddock.storage.repositories import parse

        return parse(url, local=principal.id.startswith("local:"))[0].url

    async def begin(self, row: WorkspaceRow, entry: Entry | None) -> WorkspaceRow:
        """Makes the tree as it was before anybody wrote to it."""
        limit = row.workspace.disk_mib << 20
        if row.repository is None:
            await in_thread(self._pool().create, row.id, limit_bytes=limit)
            return row
        from paddock.storage.repositories import pins

        acquired = _acquired(row)
        # Before anything lies over it: from here on neither the commit nor the repository goes.
        like = self._shelf.bases.ready(acquired, acquired.branch or "", submodules=row.workspace.submodules)
        await in_thread(pins.pin, self._shelf.directory / row.repository, row.id, acquired.commit, like=like)
        base = await self._base(row, acquired, entry)
        layers = await self._shelf.bases.derive(base, row.id, limit_bytes=limit)
        workspace = replace(row.workspace, unfetched=base.unfetched)
        return replace(row, workspace=workspace, base=base.id, layers=layers)

    async def _base(self, row: WorkspaceRow, acquired: Acquired, entry: Entry | None) -> Base:
        """One that is there when it is recorded that this workspace needs it: no await comes between."""
        branch, submodules = acquired.branch or "", row.workspace.submodules
        base = await self._shelf.bases.get(acquired, branch, entry, submodules=submodules)
        while self._shelf.bases.ready(acquired, branch, submodules=submodules) != base.id:  # collected meanwhile
            base = await self._shelf.bases.get(acquired, branch, entry, submodules=submodules)
        self._rows.lie_over(row.id, (base.id,))
        return base

    def release(self, row: WorkspaceRow) -> None:
        """It needs nothing any more."""
        if row.repository is not None:
            from paddock.storage.repositories import pins

            pins.unpin(self._shelf.directory / row.repository, row.id)


def _acquired(row: WorkspaceRow) -> Acquired:
    w = row.workspace
    if row.repository is None or w.repository is None or w.commit is None or w.branch is None:
        raise InternalError(f"the row of workspace {row.id} does not say what it began with")
    return Acquired(
        repository=RepositoryId(row.repository),
        url=w.repository,
        commit=w.commit,
        ref=None,
        branch=w.branch,
        observed_at=w.observed_at or 0.0,
    )
