"""Which sandbox may write a workspace: one at a time, and none while another may still be alive."""

from __future__ import annotations

from paddock.errors import InvalidState
from paddock.model import Workspace, replace

from ._context import Component, Context
from ._live import Live
from ._store import Row, has_ended
from ._workspace_store import WorkspaceRow, WorkspaceStore


class Tenancy(Component):
    def __init__(self, context: Context, live: Live) -> None:
        super().__init__(context)
        self._live, self._rows = live, WorkspaceStore(self._store)

    def take(self, row: Row) -> None:
        """In the transaction that records the sandbox: it has its workspace from now on, until the row has ended.
        InvalidState: another one lives over it. The caller holds the lane of the workspace alone."""
        assert row.workspace is not None
        found = self._rows.get(row.workspace.tree)
        assert found is not None
        if self.living(found):
            raise self.held(found)
        self._rows.give(found.id, row.id, self._clock.wall())

    async def free(self, row: WorkspaceRow) -> None:
        """InvalidState while a sandbox lives over it."""
        if await self.occupant(row):
            raise self.held(row)

    async def occupant(self, row: WorkspaceRow) -> Row | None:
        """The sandbox that has it. What is recorded as dead, its backend has to confirm: two that write one tree would
        be its end."""
        sandbox = self._last(row)
        if sandbox is not None and not has_ended(sandbox):
            sandbox = await self._live.check(sandbox)  # it may have died unnoticed
        if sandbox is None or not has_ended(sandbox):
            return sandbox
        await self._live.confirm_dead(sandbox)
        return None

    def living(self, row: WorkspaceRow) -> Row | None:
        """The sandbox that has it, as far as is recorded."""
        sandbox = self._last(row)
        return None if sandbox is None or has_ended(sandbox) else sandbox

    def last_used(self, row: WorkspaceRow) -> float:
        """When its last sandbox ended, or it was opened; seconds since the epoch."""
        sandbox = self._last(row)
        ended = None if sandbox is None else sandbox.sandbox.ended_at
        return max(row.workspace.used_at, ended or 0.0)

    def shown(self, row: WorkspaceRow) -> Workspace:
        """As callers see it: a sandbox that is dead has nothing any more."""
        return row.workspace if self.living(row) else replace(row.workspace, sandbox=None)

    def held(self, row: WorkspaceRow) -> InvalidState:
        sandbox, name = self.living(row), row.workspace.name
        if sandbox is None:
            return InvalidState(f"workspace {name!r} is free by now", hint="try again")
        return InvalidState(
            f"sandbox {sandbox.id} has workspace {name!r}, and only one may write it",
            hint=f"use that one, or end it: paddock kill {sandbox.sandbox.spec.name or sandbox.id}",
            sandbox=sandbox.id,
        )

    def _last(self, row: WorkspaceRow) -> Row | None:
        id = row.workspace.sandbox
        return None if id is None else self._store.get(id)


def check_epoch(workspace: Workspace, epoch: int | None) -> None:
    """InvalidState if one was given that has passed: what was known of the workspace then may not be so now."""
    if epoch is not None and epoch != workspace.epoch:
        raise InvalidState(
            f"workspace {workspace.name!r} is in epoch {workspace.epoch}, not {epoch}: another sandbox has had it"
            " since",
            hint=f"paddock status {workspace.name}",
            epoch=workspace.epoch,
        )
