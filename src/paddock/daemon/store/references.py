"""Who needs a tree, and why: the one answer, computed from the rows each time it is asked.

A row is written before its tree is made and removed before its tree is: so whoever looks at the trees first and then
asks here, never takes one that somebody needs, copies that are being made included.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import chain
from typing import NamedTuple

from paddock.model import State, WorkspaceState

from .database import SnapshotStore, Store, WorkspaceStore
from .trees import WORKSPACE_OF, WorkspaceTree, beside, spare_of


class Need(NamedTuple):
    tree: str
    by: str
    """The id of what needs it."""
    why: str

    @property
    def told(self) -> str:
        return f"{self.by} needs it: {self.why}"


def told(needed: Mapping[str, tuple[Need, ...]], tree: str) -> str | None:
    """Return who needs a tree and why, if anybody does."""
    return needed[tree][0].told if tree in needed else None


class Needs:
    """All trees that the rows of the store need."""

    def __init__(self, store: Store) -> None:
        self._store, self._snapshots, self._workspaces = store, SnapshotStore(store), WorkspaceStore(store)

    def by_tree(self) -> Mapping[str, tuple[Need, ...]]:
        return self._found(_of_bases(self._store), _of_workshops(self._store), whole=False)

    def whole(self) -> Mapping[str, tuple[Need, ...]]:
        """Return only what has to be there at this moment: a row comes before the tree that is made for it."""
        return self._found(whole=True)

    def _found(self, *more: Iterable[Need], whole: bool) -> Mapping[str, tuple[Need, ...]]:
        found: dict[str, tuple[Need, ...]] = {}
        sandboxes, snapshots = _of_sandboxes(self._store, whole=whole), _of_snapshots(self._snapshots, whole=whole)
        for need in chain(sandboxes, snapshots, *more, _of_workspaces(self._workspaces, whole=whole)):
            found[need.tree] = (*found.get(need.tree, ()), need)
        return found


def _of_sandboxes(store: Store, *, whole: bool) -> Iterable[Need]:
    """Of the living ones. Unless `whole`, those that are being made or taken back to a snapshot too."""
    for row in store.list():
        if whole and row.state not in (State.RUNNING, State.PAUSED):
            continue
        yield Need(row.id, row.id, "it is what the sandbox has written")
        if not whole:
            yield Need(row.id + WORKSPACE_OF, row.id, "it is the sandbox's own copy of a workspace")
        for layer in row.layers:
            yield Need(layer, row.id, "the sandbox lies over it")
        yield from _of_workspace(row.id, row.workspace)
        if row.state is State.RESTORING:
            for name in (beside(row.id), beside(row.id, workspace=True)):
                yield Need(name, row.id, "it is to take the place of the sandbox's")


def _of_snapshots(store: SnapshotStore, *, whole: bool) -> Iterable[Need]:
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


def _of_bases(store: Store) -> Iterable[Need]:
    for id, commit in store.execute("SELECT id, commit_id FROM bases", ()).fetchall():
        yield Need(id, id, f"it is {commit[:12]} checked out")
        yield Need(spare_of(id), id, "the next workspace of that commit begins with it")


def _of_workshops(store: Store) -> Iterable[Need]:
    for (id,) in store.execute("SELECT id FROM workshops", ()).fetchall():
        yield Need(id, id, "it is a workshop's own")


def _of_workspaces(store: WorkspaceStore, *, whole: bool) -> Iterable[Need]:
    """Of those that are laid out (unless `whole`, or about to be), and what they lie over. Evicted ones need their
    repository as well."""
    for row in store.list():
        name = row.workspace.name
        if whole and row.state is not WorkspaceState.READY:
            continue
        if row.repository is not None and not whole:
            yield Need(row.repository, row.id, f"the history of workspace {name} is there")
        if row.state is not WorkspaceState.EVICTED:
            yield Need(row.id, row.id, f"it is workspace {name}")
        for layer in row.layers:
            yield Need(layer, row.id, f"workspace {name} lies over it")
