"""Which sandbox has which placeholders, and where their secrets come from. Never a value."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from paddock.model import SecretRule

from ._store import LIVING, Store

_KEPT_SECONDS = 3600.0
_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(SecretRule).decode


class Lease(msgspec.Struct, frozen=True):
    """A secret that a sandbox may use. `owner` is whose it is."""

    sandbox: str
    owner: str
    name: str
    placeholder: str
    rule: SecretRule


class LeaseStore:
    def __init__(self, store: Store) -> None:
        self._store = store

    def add(self, leases: Sequence[Lease], now: float) -> None:
        """Or other rules of those that are there. And forgets those of sandboxes that are forgotten. (A new one's own
        row may come a little later.)"""
        with self._store.writing() as db:
            db.execute(
                "DELETE FROM sandbox_secrets WHERE created_at < ? AND sandbox NOT IN (SELECT id FROM sandboxes)",
                (now - _KEPT_SECONDS,),
            )
            db.executemany(
                "INSERT INTO sandbox_secrets (sandbox, name, owner, placeholder, rule, stored, created_at)"
                " VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT (sandbox, name) DO UPDATE SET rule = excluded.rule,"
                " stored = excluded.stored",
                [
                    (one.sandbox, one.name, one.owner, one.placeholder, _encode(one.rule), one.rule.source.stored, now)
                    for one in leases
                ],
            )

    def of(self, sandbox: str) -> tuple[Lease, ...]:
        sql = "SELECT sandbox, owner, name, placeholder, rule FROM sandbox_secrets WHERE sandbox = ? ORDER BY name"
        return tuple(map(_lease, self._store.execute(sql, (sandbox,)).fetchall()))

    def users(self, owner: str, stored: str) -> tuple[Lease, ...]:
        """Those of living sandboxes whose value is kept under that name."""
        rows = self._store.execute(
            "SELECT s.sandbox, s.owner, s.name, s.placeholder, s.rule FROM sandbox_secrets s"
            " JOIN sandboxes b ON b.id = s.sandbox WHERE s.owner = ? AND s.stored = ? AND b.state IN (?, ?, ?, ?)",
            (owner, stored, *(state.value for state in LIVING)),
        ).fetchall()
        return tuple(map(_lease, rows))


def _lease(row: tuple[str, str, str, str, bytes]) -> Lease:
    sandbox, owner, name, placeholder, rule = row
    return Lease(sandbox, owner, name, placeholder, _decode(rule))
