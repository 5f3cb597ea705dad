"""Rows of secrets, sealed, in the store's file and transactions."""

from __future__ import annotations

from collections.abc import Callable

from paddock.model import Secret
from paddock.storage._vault import Place, Sealed

from ._store import Store

_SELECT = "SELECT version, key, wrapped, sealed FROM secrets WHERE owner = ? AND name = ?"


class SecretStore:
    def __init__(self, store: Store) -> None:
        self._store = store

    def put(self, owner: str, name: str, now: float, seal: Callable[[Place], Sealed]) -> Secret:
        """The next version, of what `seal` makes for it."""
        with self._store.writing() as db:
            found = db.execute("SELECT version FROM secrets WHERE owner = ? AND name = ?", (owner, name)).fetchone()
            place = Place(owner, name, 1 if found is None else found[0] + 1)
            sealed = seal(place)
            db.execute(
                "INSERT INTO secrets (owner, name, version, key, wrapped, sealed, created_at, updated_at)"
                " VALUES (?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (owner, name) DO UPDATE SET version = excluded.version,"
                " key = excluded.key, wrapped = excluded.wrapped, sealed = excluded.sealed,"
                " updated_at = excluded.updated_at",
                (owner, name, place.version, sealed.key, sealed.wrapped, sealed.sealed, now, now),
            )
        return next(one for one in self.list(owner) if one.name == name)

    def get(self, owner: str, name: str) -> tuple[Place, Sealed] | None:
        found = self._store.execute(_SELECT, (owner, name)).fetchone()
        return None if found is None else (Place(owner, name, found[0]), Sealed(*found[1:]))

    def used(self, owner: str, name: str, now: float) -> None:
        self._store.execute("UPDATE secrets SET used_at = ? WHERE owner = ? AND name = ?", (now, owner, name))

    def remove(self, owner: str, name: str) -> bool:
        sql = "DELETE FROM secrets WHERE owner = ? AND name = ?"
        return bool(self._store.execute(sql, (owner, name)).rowcount)

    def list(self, owner: str) -> tuple[Secret, ...]:
        rows = self._store.execute(
            "SELECT name, version, created_at, updated_at, used_at, key FROM secrets WHERE owner = ? ORDER BY name",
            (owner,),
        ).fetchall()
        return tuple(
            Secret(name=name, version=version, created_at=created, updated_at=updated, used_at=used, key=key)
            for name, version, created, updated, used, key in rows
        )

    def reseal(self, anew: Callable[[Sealed, Place], Sealed]) -> int:
        """All of everybody's, or none."""
        with self._store.writing() as db:
            rows = db.execute("SELECT owner, name, version, key, wrapped, sealed FROM secrets").fetchall()
            for owner, name, version, *sealed in rows:
                fresh = anew(Sealed(*sealed), Place(owner, name, version))
                db.execute(
                    "UPDATE secrets SET key = ?, wrapped = ?, sealed = ? WHERE owner = ? AND name = ?",
                    (fresh.key, fresh.wrapped, fresh.sealed, owner, name),
                )
        return len(rows)
