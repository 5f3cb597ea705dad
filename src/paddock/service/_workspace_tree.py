"""The tree that a sandbox has at /workspace, and who knows which one that is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import msgspec

from paddock.backends._base import TreeMount
from paddock.errors import Unsupported

if TYPE_CHECKING:
    from ._store import Row

WORKSPACE = "/workspace"
REPOSITORY = "/run/paddock/repository"


class WorkspaceTree(msgspec.Struct, frozen=True):
    """`tree` is a workspace, or a copy of one that is this sandbox's or this snapshot's own."""

    tree: str
    layers: tuple[str, ...] = ()
    """What it lies over in the pool, topmost first."""
    repository: str | None = None
    """Where the objects of its history are."""
    epoch: int = 0
    """The workspace's while this sandbox has it; none of its copies has one."""

    def mounts(self) -> tuple[TreeMount, ...]:
        own = TreeMount(tree=self.tree, target=WORKSPACE, writable=True, layers=self.layers)
        if self.repository is None:
            return (own,)
        return own, TreeMount(tree=self.repository, target=REPOSITORY, writable=False)


def refuse(row: Row, doing: str) -> None:
    """Until its workspace can come along."""
    if row.workspace is not None:
        raise Unsupported(f"{row.id} has a workspace: {doing} would be without it", sandbox=row.id)


class Workspaces(Protocol):
    """Who knows which tree a workspace is, and who may write it."""

    async def resolve(self, reference: str, owner: str) -> WorkspaceTree:
        """By id, unique prefix of one, or name. NotFound, InvalidArgument."""
        ...

    def take(self, row: Row) -> None:
        """Called in the transaction that records a new sandbox over `row.workspace`: from now on that one writes it,
        until the row has ended. InvalidState: another living sandbox does; then the row is not recorded."""
        ...
