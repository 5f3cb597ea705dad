"""Whose results are asked for: a workspace, or a sandbox that has one, or one that has none; and what has left them."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from operator import itemgetter

import msgspec

from paddock.backends._base import TreeMount
from paddock.errors import InvalidState, NotFound, SandboxDied
from paddock.model import Artifact, Workspace

from ._gate import Entry
from ._live import Held
from ._sandboxes import Sandboxes
from ._snapshots import Snapshots
from ._store import Row, Store
from ._workshop import READING_SECONDS, Workshop, Workshops
from ._workspace_tree import REPOSITORY, WORKSPACE, WorkspaceTree
from ._workspaces import Begun, Workspaces


class ResultStore:
    """`of` is the id of a workspace, or of a sandbox that has none."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def pushed(self, owner: str, of: str, ref: str, commit: str, at: float) -> None:
        self._store.execute(
            "INSERT OR REPLACE INTO results (owner, of_id, of_name, kind, name, digest, created_at)"
            " VALUES (?, ?, ?, 'branch', ?, ?, ?)",
            (owner, of, of, ref, commit, at),
        )

    def last_pushed(self, owner: str, of: str, ref: str | None = None) -> tuple[str, str] | None:
        """Ref and commit of what was pushed last, to `ref` or to any."""
        sql = (
            "SELECT name, digest FROM results"
            " WHERE owner = ? AND of_id = ? AND kind = 'branch' AND ifnull(?, name) = name"
            " ORDER BY created_at DESC LIMIT 1"
        )
        return self._store.one(lambda found: (found[0], found[1]), sql, (owner, of, ref))

    def keep(self, owner: str, artifact: Artifact, of_name: str) -> bool:
        """False: there is one of that name."""
        return bool(
            self._store.execute(
                "INSERT OR IGNORE INTO results"
                " (owner, of_id, of_name, kind, name, digest, path, bytes, is_tree, created_at)"
                " VALUES (?, ?, ?, 'artifact', ?, ?, ?, ?, ?, ?)",
                (
                    *(owner, artifact.of, of_name, artifact.name, artifact.digest),
                    *(artifact.path, artifact.size_bytes, artifact.tree, artifact.created_at),
                ),
            ).rowcount
        )

    def artifacts(self, owner: str, of: str | None = None, name: str | None = None) -> tuple[Artifact, ...]:
        """Oldest first. `of` is an id, or the name that it had."""
        rows = self._store.execute(
            "SELECT of_id, name, path, digest, bytes, is_tree, created_at FROM results WHERE kind = 'artifact'"
            " AND owner = ? AND (? IS NULL OR of_id = ? OR of_name = ?) AND ifnull(?, name) = name"
            " ORDER BY created_at, name",
            (owner, of, of, of, name),
        ).fetchall()
        return tuple(
            Artifact(of=of, name=name, path=path, digest=digest, size_bytes=size, tree=bool(tree), created_at=at)
            for of, name, path, digest, size, tree, at in rows
        )

    def forget(self, owner: str, artifact: Artifact) -> None:
        self._store.execute(
            "DELETE FROM results WHERE owner = ? AND of_id = ? AND kind = 'artifact' AND name = ?",
            (owner, artifact.of, artifact.name),
        )

    def digests(self) -> set[str]:
        """Of all artifacts that somebody has."""
        return set(self._store.every(itemgetter(0), "SELECT digest FROM results WHERE kind = 'artifact'"))


class Origin(msgspec.Struct, frozen=True):
    workspace: Workspace
    url: str
    commit: str
    cache: str
    """The repository that its objects are borrowed from."""


class Source(msgspec.Struct, frozen=True):
    """`running` is the sandbox that writes it, if one lives."""

    id: str
    name: str
    begun: Begun | None
    tree: WorkspaceTree | None
    """Its own: of a fork, a copy of what was begun."""
    running: tuple[Row, Held] | None

    def origin(self) -> Origin:
        """InvalidState: it did not come from a repository."""
        begun = self.begun
        space, cache = (None, None) if begun is None else (begun.workspace, begun.tree.repository)
        if space is None or cache is None or space.commit is None or space.repository is None:
            raise InvalidState(
                f"{self.name!r} was not opened from a repository: there is nothing to compare it with",
                hint="paddock cp takes files out; paddock diff --mount is for directories of this machine",
            )
        return Origin(space, space.repository, space.commit, cache)


class Sources:
    def __init__(
        self, sandboxes: Sandboxes, snapshots: Snapshots, workspaces: Workspaces, workshops: Workshops
    ) -> None:
        self._sandboxes, self._snapshots = sandboxes, snapshots
        self._workspaces, self._workshops = workspaces, workshops

    async def find(self, reference: str, entry: Entry) -> Source:
        """A living sandbox before a workspace: it may have a copy of its own. NotFound, SandboxDied."""
        owner = entry.principal.id
        try:
            row, held = await self._sandboxes.reach(reference, entry)
        except (NotFound, SandboxDied) as error:
            try:
                begun = await self._workspaces.begun(reference, owner, entry)
            except NotFound:
                raise error from None
            return await self._resting(begun, entry)
        name = row.sandbox.spec.name or row.id
        if row.workspace is None or row.workspace.workspace is None:
            return Source(row.id, name, None, None, (row, held))
        begun = await self._workspaces.begun(row.workspace.workspace, owner, entry)
        if row.workspace.tree == begun.tree.tree:
            return Source(begun.workspace.id, begun.workspace.name, begun, row.workspace, (row, held))
        return Source(row.id, name, begun, row.workspace, (row, held))

    async def _resting(self, begun: Begun, entry: Entry) -> Source:
        running = None
        if begun.workspace.sandbox is not None:
            with suppress(NotFound, SandboxDied):
                running = await self._sandboxes.reach(begun.workspace.sandbox, entry)
        return Source(begun.workspace.id, begun.workspace.name, begun, begun.tree, running)

    @asynccontextmanager
    async def workshop(self, source: Source, entry: Entry) -> AsyncGenerator[Workshop]:
        """One that reads the files as they are at one instant, and the repository that they came from."""
        assert source.tree is not None
        tree = source.tree
        if source.running is None:
            async with self._open(tree, tree.tree, entry) as workshop:
                yield workshop
            return
        row, held = source.running
        copying = self._snapshots.momentary(row, held, tree=tree.tree)
        async with self._sandboxes.told(row), copying as copy, self._open(tree, copy, entry) as workshop:
            yield workshop

    @asynccontextmanager
    async def _open(self, tree: WorkspaceTree, name: str, entry: Entry) -> AsyncGenerator[Workshop]:
        trees = [TreeMount(tree=name, target=WORKSPACE, writable=False, layers=tree.layers)]
        if tree.repository is not None:
            trees.append(TreeMount(tree=tree.repository, target=REPOSITORY, writable=False))
        async with self._workshops.open(trees, entry, command_seconds=READING_SECONDS) as workshop:
            yield workshop
