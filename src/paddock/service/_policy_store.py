"""Rows of policies, in the store's file and transactions."""

from __future__ import annotations

from ._store import Store

_KEEP = (
    "INSERT INTO policies (revision, document, kept_at) VALUES (?, ?, ?)"
    " ON CONFLICT (revision) DO UPDATE SET kept_at = excluded.kept_at"
)
_SET = (
    "UPDATE sandboxes SET policy = ? WHERE id = ? AND policy IS ? AND incarnation = coalesce(?, incarnation)"
    " AND state IN ('running', 'paused')"
)
_PRUNE = (
    "DELETE FROM policies WHERE kept_at < ? AND revision NOT IN (SELECT policy FROM sandboxes WHERE policy IS NOT NULL)"
    " AND revision NOT IN (SELECT policy FROM snapshots WHERE policy IS NOT NULL)"
)
_IN_WORKSPACE = (
    "SELECT policy FROM sandboxes WHERE policy IS NOT NULL AND json_extract(CAST(workspace AS TEXT), '$.workspace') = ?"
    " GROUP BY policy ORDER BY max(created_at) DESC"
)


class PolicyStore:
    def __init__(self, store: Store) -> None:
        self._store = store

    def keep(self, revision: str, document: bytes, at: float) -> None:
        self._store.execute(_KEEP, (revision, document, at))

    def document(self, revision: str) -> bytes | None:
        found = self._store.execute("SELECT document FROM policies WHERE revision = ?", (revision,)).fetchone()
        return None if found is None else found[0]

    def set(self, sandbox: str, *, before: str | None, now: str | None, of: int | None = None) -> bool:
        """False if it was not `before` any more, or the sandbox has ended, is not incarnation `of`, or is being made
        again: then it gets what was recorded before."""
        return bool(self._store.execute(_SET, (now, sandbox, before, of)).rowcount)

    def in_workspace(self, workspace: str) -> tuple[str, ...]:
        """The revisions under which sandboxes have worked in it, the latest first; as long as those are recorded."""
        return tuple(row[0] for row in self._store.execute(_IN_WORKSPACE, (workspace,)).fetchall())

    def prune(self, before: float) -> int:
        """Forgets those that no sandbox and no snapshot has, and that nobody has asked for since."""
        return self._store.execute(_PRUNE, (before,)).rowcount
