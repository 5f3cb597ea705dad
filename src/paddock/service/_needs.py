"""Who needs a tree, and why: the one answer, computed from the rows each time it is asked.

A row is written before its tree is made and removed before its tree is: so whoever looks at the trees first and then
asks here, never takes one that somebody needs, copies that are being made included.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from paddock.model import State

from ._snapshot_store import SnapshotStore
from ._store import Store
from ._workspace_tree import WORKSPACE_OF, WorkspaceTree, beside


class Need(NamedTuple):
    tree: str
    by: str
    """The id of what needs it."""
    why: str


Source = Callable[[], Iterable[Need]]


class Needs:
    """`sources` are those who keep rows about trees; each names all trees that its living rows need."""

    def __init__(self, sources: Iterable[Source]) -> None:
        self._sources = tuple(sources)

    def by_tree(self) -> Mapping[str, tuple[Need, ...]]:
        found: dict[str, tuple[Need, ...]] = {}
        for source in self._sources:
            for need in source():
                found[need.tree] = (*found.get(need.tree, ()), need)
        return found


def of_sandboxes(store: Store) -> Iterable[Need]:
    """Of the living ones, those that are being made or taken back to a snapshot included."""
    for row in store.list():
        yield Need(row.id, row.id, "it is what the sandbox has written")
        yield Need(row.id + WORKSPACE_OF, row.id, "it is the sandbox's own copy of a workspace")
        for layer in row.layers:
            yield Need(layer, row.id, "the sandbox lies over it")
        yield from _of_workspace(row.id, row.workspace)
        if row.state is State.RESTORING:
            for name in (beside(row.id), beside(row.id, workspace=True)):
                yield Need(name, row.id, "it is to take the place of the sandbox's")


def of_running(store: Store) -> Iterable[Need]:
    """What has to be there at this moment: of what is being made, the row comes before the tree."""
    for row in store.list():
        if row.state in (State.RUNNING, State.PAUSED):
            yield Need(row.id, row.id, "it is what the sandbox has written")
            for layer in row.layers:
                yield Need(layer, row.id, "the sandbox lies over it")
            yield from _of_workspace(row.id, row.workspace)


def of_snapshots(store: SnapshotStore, *, whole: bool = False) -> Iterable[Need]:
    """`whole`: only of those that are not being made."""
    for row in store.list():
        if whole and not row.is_whole:
            continue
        yield Need(row.id, row.id, "it is what the snapshot holds")
        if not whole:
            yield Need(row.id + WORKSPACE_OF, row.id, "it is the workspace of the snapshot")
        for layer in row.template.layers:
            yield Need(layer, row.id, "the snapshot lies over it")
        yield from _of_workspace(row.id, row.workspace)


def _of_workspace(by: str, workspace: WorkspaceTree | None) -> Iterable[Need]:
    if workspace is not None:
        yield Need(workspace.tree, by, "it is its workspace")
        if workspace.repository is not None:
            yield Need(workspace.repository, by, "the history of its workspace is there")
        for layer in workspace.layers:
            yield Need(layer, by, "its workspace lies over it")
