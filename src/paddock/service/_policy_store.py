"""Rows of policies, in the store's file and transactions."""

from __future__ import annotations

from ._store import Store

_KEEP = (
    "INSERT INTO policies (revision, document, kept_at) VALUES (?, ?, ?)"
    " ON CONFLICT (revision) DO UPDATE SET kept_at = excluded.kept_at"
)
_SET = (
    "UPDATE sandboxes SET policy = ? WHERE id = ? AND policy IS ?"
    " AND state IN ('creating', 'restoring', 'running', 'paused')"
)
_PRUNE = (
    "DELETE FROM policies WHERE kept_at < ? AND revision NOT IN (SELECT policy FROM sandboxes WHERE policy IS NOT NULL)"
    " AND revision NOT IN (SELECT policy FROM snapshots WHERE policy IS NOT NULL)"
)


class PolicyStore:
    def __init__(self, store: Store) -> None:
        self._store = store

    def keep(self, revision: str, document: bytes, at: float) -> None:
        self._store.execute(_KEEP, (revision, document, at))

    def document(self, revision: str) -> bytes | None:
        found = self._store.execute("SELECT document FROM policies WHERE revision = ?", (revision,)).fetchone()
        return None if found is None else found[0]

    def set(self, sandbox: str, *, before: str | None, now: str | None) -> bool:
        """False if it was not `before` any more, or the sandbox has ended."""
        return bool(self._store.execute(_SET, (now, sandbox, before)).rowcount)

    def prune(self, before: float) -> int:
        """Forgets those that no sandbox and no snapshot has, and that nobody has asked for since."""
        return self._store.execute(_PRUNE, (before,)).rowcount
