"""Secrets of each owner: their values, sealed in the store's file, and the vault that opens them."""

from __future__ import annotations

import os
import re
from functools import cached_property

from paddock.errors import InvalidArgument, SecretUnavailable
from paddock.model import Secret, SecretValue
from paddock.storage._vault import Place, Sealed, Vault, open_keys
from paddock.storage.secret_sources._refused import LEAST_BYTES, MOST_BYTES

from ._context import Component

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")


class Secrets(Component):
    @cached_property
    def _vault(self) -> Vault:
        return Vault(open_keys(self._state_dir, os.environ))

    def value(self, owner: str, name: str) -> SecretValue:
        """SecretUnavailable: there is none of that name, or it cannot be opened."""
        sql = "SELECT version, key, wrapped, sealed FROM secrets WHERE owner = ? AND name = ?"
        found = self._store.execute(sql, (owner, name)).fetchone()
        if found is None:
            raise SecretUnavailable(
                f"secret {name} has no value: nobody has set it", hint=f"paddock secret set {name}", secret=name
            )
        value = SecretValue(self._vault.open(Sealed(*found[1:]), Place(owner, name, found[0])))
        sql = "UPDATE secrets SET used_at = ? WHERE owner = ? AND name = ?"
        self._store.execute(sql, (self._clock.wall(), owner, name))
        return value

    def set(self, owner: str, name: str, value: SecretValue) -> Secret:
        """Keep `value` as the next version."""
        now = self._clock.wall()
        with self._store.writing() as db:
            found = db.execute("SELECT version FROM secrets WHERE owner = ? AND name = ?", (owner, name)).fetchone()
            place = Place(owner, name, 1 if found is None else found[0] + 1)
            sealed = self._vault.seal(value.data, place)
            db.execute(
                "INSERT INTO secrets (owner, name, version, key, wrapped, sealed, created_at, updated_at)"
                " VALUES (?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (owner, name) DO UPDATE SET version = excluded.version,"
                " key = excluded.key, wrapped = excluded.wrapped, sealed = excluded.sealed,"
                " updated_at = excluded.updated_at",
                (owner, name, place.version, sealed.key, sealed.wrapped, sealed.sealed, now, now),
            )
        return next(one for one in self.list(owner) if one.name == name)

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

    def rotate_key(self) -> int:
        """Reseal the secrets of all owners, and return how many there are. Whatever is killed in between, every row's
        key is in the ring."""
        self._vault.keys.begin()
        with self._store.writing() as db:
            rows = db.execute("SELECT owner, name, version, key, wrapped, sealed FROM secrets").fetchall()
            for owner, name, version, *sealed in rows:
                fresh = self._vault.rewrap(Sealed(*sealed), Place(owner, name, version))
                db.execute(
                    "UPDATE secrets SET key = ?, wrapped = ?, sealed = ? WHERE owner = ? AND name = ?",
                    (fresh.key, fresh.wrapped, fresh.sealed, owner, name),
                )
        self._vault.keys.finish()
        return len(rows)


def check_name(name: str) -> None:
    if not _NAME.fullmatch(name):
        raise InvalidArgument(
            f"{name[:140]!r} is no name of a secret: letters, digits and `_`, no digit in front, as with variables",
            field="name",
        )


def check_value(name: str, value: SecretValue) -> None:
    size = len(value.data)
    if size < LEAST_BYTES:
        raise InvalidArgument(
            f"{name} has {size} bytes, and a secret at least {LEAST_BYTES}: a shorter one could not be told from"
            " ordinary text where it comes back and has to be taken out",
            field="value",
        )
    if size > MOST_BYTES:
        raise InvalidArgument(f"{name} has {size} bytes, and a secret at most {MOST_BYTES}", field="value")
