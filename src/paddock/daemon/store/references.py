"""Compute from the rows which trees are needed, and why.

A row is written before its tree is made, and removed before its tree is deleted. So a caller that lists trees first and
then asks here never deletes a needed tree, copies in the making included.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import chain
from typing import NamedTuple

from paddock.model import State, WorkspaceState

from .database import SnapshotStore, Store, WorkspaceStore
from .trees import WORKSPACE_OF, WorkspaceTree, spare_of, staged_trees


class TreeReference(NamedTuple):
    tree: str
    by: str
    """The id of what needs it."""
    why: str

    @property
    def message(self) -> str:
        return f"{self.by} needs it: {self.why}"


def why_needed(needed: Mapping[str, tuple[TreeReference, ...]], tree: str) -> str | None:
    """Return which row needs a tree and why, or None."""
    return needed[tree][0].message if tree in needed else None


def trees_needed(store: Store, *, whole: bool = False) -> Mapping[str, tuple[TreeReference, ...]]:
    """Return all references from the rows of the store, by tree. `whole`: only to trees that must exist now, since a
    row comes before its tree."""
    found: dict[str, tuple[TreeReference, ...]] = {}
    sandboxes, snapshots = _of_sandboxes(store, whole=whole), _of_snapshots(SnapshotStore(store), whole=whole)
    more = () if whole else _of_bases_and_utilities(store)
    for reference in chain(sandboxes, snapshots, more, _of_workspaces(WorkspaceStore(store), whole=whole)):
        found[reference.tree] = (*found.get(reference.tree, ()), reference)
    return found


def _of_sandboxes(store: Store, *, whole: bool) -> Iterable[TreeReference]:
    """Yield those of living sandboxes. Unless `whole`, include those being made or rolled back too."""
    for row in store.list():
        if whole and row.state not in (State.RUNNING, State.PAUSED):
            continue
        yield TreeReference(row.id, row.id, "it is what the sandbox has written")
        if not whole:
            yield TreeReference(row.id + WORKSPACE_OF, row.id, "it is the sandbox's own copy of a workspace")
        for layer in row.layers:
            yield TreeReference(layer, row.id, "the sandbox lies over it")
        yield from _of_workspace(row.id, row.workspace)
        if row.state is State.RESTORING:
            for name in staged_trees(row.id):
                yield TreeReference(name, row.id, "it is to take the place of the sandbox's")


def _of_snapshots(store: SnapshotStore, *, whole: bool) -> Iterable[TreeReference]:
    """Yield those of snapshots. `whole`: only of complete ones."""
    for row in store.list():
        if whole and not row.is_whole:
            continue
        yield TreeReference(row.id, row.id, "it is what the snapshot holds")
        if not whole:
            yield TreeReference(row.id + WORKSPACE_OF, row.id, "it is the workspace of the snapshot")
        for layer in row.made_from.layers:
            yield TreeReference(layer, row.id, "the snapshot lies over it")
        yield from _of_workspace(row.id, row.workspace)


def _of_workspace(by: str, workspace: WorkspaceTree | None) -> Iterable[TreeReference]:
    if workspace is not None:
        yield TreeReference(workspace.tree, by, "it is its workspace")
        if workspace.repository is not None:
            yield TreeReference(workspace.repository, by, "the history of its workspace is there")
        for layer in workspace.layers:
            yield TreeReference(layer, by, "its workspace lies over it")


def _of_bases_and_utilities(store: Store) -> Iterable[TreeReference]:
    for id, commit in store.execute("SELECT id, commit_id FROM bases", ()).fetchall():
        yield TreeReference(id, id, f"it is {commit[:12]} checked out")
        yield TreeReference(spare_of(id), id, "the next workspace of that commit begins with it")
    for (id,) in store.execute("SELECT id FROM workshops", ()).fetchall():
        yield TreeReference(id, id, "it is a workshop's own")


def _of_workspaces(store: WorkspaceStore, *, whole: bool) -> Iterable[TreeReference]:
    """Yield those of workspaces in the pool (unless `whole`, also of those about to be), and their layers. Evicted ones
    need their repository as well."""
    for row in store.list():
        name = row.workspace.name
        if whole and row.state is not WorkspaceState.READY:
            continue
        if row.cache is not None and not whole:
            yield TreeReference(row.cache, row.id, f"the history of workspace {name} is there")
        if row.state is not WorkspaceState.EVICTED:
            yield TreeReference(row.id, row.id, f"it is workspace {name}")
        for layer in row.layers:
            yield TreeReference(layer, row.id, f"workspace {name} lies over it")
