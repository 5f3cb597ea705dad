"""The tree that a sandbox has at /workspace."""

from __future__ import annotations

import msgspec

from paddock.backends.base import TreeMount

WORKSPACE = "/workspace"
REPOSITORY = "/run/paddock/repository"
WORKSPACE_OF = "_w"
"""The end of the name of a sandbox's or snapshot's own copy of a workspace."""
STAGED, SPARE = "rb_", "nx_"


class WorkspaceTree(msgspec.Struct, frozen=True):
    """`tree` is a workspace, or a copy of one that is this sandbox's or this snapshot's own."""

    tree: str
    layers: tuple[str, ...] = ()
    """Trees below it in the pool, topmost first."""
    repository: str | None = None
    """The repository with the objects of its history."""
    disk_mib: int | None = None
    """Its limit; the pool keeps it where it can."""
    epoch: int = 0
    """The workspace's while this sandbox has it; none of its copies has one."""
    workspace: str | None = None
    """Which one it is, or is a copy of."""

    def mounts(self, *, writable: bool = True) -> tuple[TreeMount, ...]:
        most = None if self.disk_mib is None else self.disk_mib << 20
        own = TreeMount(tree=self.tree, target=WORKSPACE, writable=writable, layers=self.layers, disk_bytes=most)
        if self.repository is None:
            return (own,)
        return own, TreeMount(tree=self.repository, target=REPOSITORY, writable=False)


def own_copy(workspace: WorkspaceTree | None, id: str) -> WorkspaceTree | None:
    """Return the same as a separate tree, deleted with the sandbox or snapshot `id`."""
    return None if workspace is None else msgspec.structs.replace(workspace, tree=id + WORKSPACE_OF, epoch=0)


def staged_trees(id: str) -> tuple[str, str]:
    """Return the names of the copies that a rollback stages: of the sandbox, and of its workspace."""
    return STAGED + id, STAGED + id + WORKSPACE_OF


def spare_of(base: str) -> str:
    """Return the name of the copy of a base that is made ahead."""
    return SPARE + base.split("_", 1)[1]
