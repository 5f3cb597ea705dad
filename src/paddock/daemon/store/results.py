"""Results of workspaces and sandboxes as the store keeps them: pushed branches and artifacts."""

from __future__ import annotations

from paddock.model import Artifact

from .database import Store


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
        """Return ref and commit of the last push, to `ref` or to any."""
        sql = (
            "SELECT name, digest FROM results"
            " WHERE owner = ? AND of_id = ? AND kind = 'branch' AND ifnull(?, name) = name"
            " ORDER BY created_at DESC LIMIT 1"
        )
        return self._store.one(lambda *found: found, sql, (owner, of, ref))

    def keep(self, owner: str, artifact: Artifact, of_name: str) -> bool:
        """Keep it. False: there is one of that name."""
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
        sql = (
            "SELECT of_id, name, path, digest, bytes, is_tree, created_at FROM results WHERE kind = 'artifact'"
            " AND owner = ? AND (? IS NULL OR of_id = ? OR of_name = ?) AND ifnull(?, name) = name"
            " ORDER BY created_at, name"
        )
        return self._store.every(_artifact, sql, (owner, of, of, of, name))

    def forget(self, owner: str, artifact: Artifact) -> None:
        self._store.execute(
            "DELETE FROM results WHERE owner = ? AND of_id = ? AND kind = 'artifact' AND name = ?",
            (owner, artifact.of, artifact.name),
        )

    def digests(self) -> set[str]:
        """Return the digests of all artifacts."""
        return set(self._store.every(str, "SELECT digest FROM results WHERE kind = 'artifact'"))


def _artifact(of: str, name: str, path: str, digest: str, size: int, tree: int, at: float) -> Artifact:
    return Artifact(of=of, name=name, path=path, digest=digest, size_bytes=size, tree=bool(tree), created_at=at)
