"""Rows of repositories and of what they had, in the store's file and transactions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from paddock.errors import InvalidStateError
from paddock.model import Principal, Repository, RepositoryId

from .database import Store

PUBLIC = "public"
NOBODY = Principal("")
"""A principal without credential, directory of this machine, or cache."""

_SELECT = "SELECT id, scope, url, head, observed_at, observed_boot, observed_clock, used_at FROM repositories"
_REFS = "SELECT name, oid, commit_id FROM repository_refs WHERE repository = ?"
_HEADS, _TAGS = "refs/heads/", "refs/tags/"


class RepositoryRow(msgspec.Struct, frozen=True):
    """A repository as the store keeps it. `head` is the full name of its default branch."""

    id: RepositoryId
    scope: str
    url: str
    head: str | None
    observed_at: float | None
    observed_boot: str | None
    observed_clock: float | None
    """CLOCK_BOOTTIME seconds of that boot: the age of an observation counts by it."""
    used_at: float


class KnownRef(msgspec.Struct, frozen=True):
    """Hold what a remote had under a full name, and its commit, which is here."""

    name: str
    oid: str
    commit: str | None


class Observation(msgspec.Struct, frozen=True, kw_only=True):
    """Hold what a remote had, all of it here, at that time: by the wall clock, and by the boot's."""

    head: str | None
    refs: Mapping[str, KnownRef]
    at: float
    boot: str
    clock: float


class RepositoryStore:
    def __init__(self, store: Store) -> None:
        self._store = store

    def find(self, scope: str, url: str) -> RepositoryRow | None:
        return self._store.one(RepositoryRow, f"{_SELECT} WHERE scope = ? AND url = ?", (scope, url))

    def get(self, id: str) -> RepositoryRow | None:
        return self._store.one(RepositoryRow, f"{_SELECT} WHERE id = ?", (id,))

    def make(self, id: RepositoryId, scope: str, url: str, now: float) -> RepositoryRow:
        """Return the one of that scope and URL: a new one of that id, if there is none."""
        sql = "INSERT OR IGNORE INTO repositories (id, scope, url, used_at) VALUES (?, ?, ?, ?)"
        self._store.execute(sql, (id, scope, url, now))
        row = self.find(scope, url)
        assert row is not None
        return row

    def refs(self, id: str) -> Mapping[str, KnownRef]:
        return {ref.name: ref for ref in self._store.every(KnownRef, _REFS, (id,))}

    def ref(self, id: str, name: str) -> KnownRef | None:
        return self._store.one(KnownRef, f"{_REFS} AND name = ?", (id, name))

    def has_tip(self, id: str, commit: str) -> bool:
        """Tell whether a branch or a tag leads to it."""
        sql = "SELECT 1 FROM repository_refs WHERE repository = ? AND commit_id = ? LIMIT 1"
        return self._store.execute(sql, (id, commit)).fetchone() is not None

    def observed(self, id: str, seen: Observation) -> None:
        """Record an observation. Raises InvalidStateError if it was deleted meanwhile."""
        with self._store.writing() as db:
            before = set(self._store.every(KnownRef, _REFS, (id,)))
            now = set(seen.refs.values())
            db.executemany(
                "DELETE FROM repository_refs WHERE repository = ? AND name = ?",
                [(id, ref.name) for ref in before - now],
            )
            db.executemany(
                "INSERT INTO repository_refs (repository, name, oid, commit_id) VALUES (?, ?, ?, ?)",
                [(id, ref.name, ref.oid, ref.commit) for ref in now - before],
            )
            done = db.execute(
                "UPDATE repositories SET head = ?, observed_at = ?, observed_boot = ?, observed_clock = ? WHERE id = ?",
                (seen.head, seen.at, seen.boot, seen.clock, id),
            ).rowcount
            if not done:
                raise InvalidStateError(f"repository {id} was deleted while it was being fetched", hint="try again")

    def used(self, id: str, now: float) -> None:
        self._store.execute("UPDATE repositories SET used_at = ? WHERE id = ?", (now, id))

    def list(self, owner: str) -> tuple[Repository, ...]:
        """Return what is public, and what is that one's own."""
        sql = (
            "SELECT head, id, url, scope, observed_at, used_at,"
            " (SELECT count(*) FROM repository_refs WHERE repository = id AND name >= ? AND name < ?),"
            " (SELECT count(*) FROM repository_refs WHERE repository = id AND name >= ? AND name < ?)"
            " FROM repositories WHERE scope IN (?, ?) ORDER BY url, scope"
        )
        return self._store.every(_repository, sql, (_HEADS, "refs/heads0", _TAGS, "refs/tags0", PUBLIC, owner))

    def by_use(self) -> tuple[tuple[str, str, float], ...]:
        """Id, address and last use of all, the one first that was not used for longest."""
        return self._store.every(lambda *found: found, "SELECT id, url, used_at FROM repositories ORDER BY used_at, id")

    def remove(self, id: str) -> None:
        """With what it had. Not while there are bases of it: InvalidState."""
        with self._store.writing() as db:
            if db.execute("SELECT 1 FROM bases WHERE repository = ? LIMIT 1", (id,)).fetchone():
                raise InvalidStateError(f"there are checkouts of repository {id}", hint="try again later")
            db.execute("DELETE FROM repository_refs WHERE repository = ?", (id,))
            db.execute("DELETE FROM repositories WHERE id = ?", (id,))


def _repository(head: str | None, *values: Any) -> Repository:
    found = dict(zip(("id", "url", "scope", "observed_at", "used_at", "branches", "tags"), values, strict=True))
    return Repository(**found, default_branch=head.removeprefix(_HEADS) if head else None)
