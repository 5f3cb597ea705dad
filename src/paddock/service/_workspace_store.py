# ruff: noqa: S608 (statements are put together from the constants below, never from values)
"""Rows of workspaces, in the store's file and transactions."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from typing import Any

import msgspec

from paddock.model import SandboxId, Workspace, WorkspaceId, WorkspaceState, WorkspaceStatus

from ._store import Store

_FIELDS = (
    "id, owner, name, state, holder, url, branch, oid, observed_at, repository, base, layers, sandbox, epoch, disk_mib,"
    " created_at, used_at, pinned_until, submodules, unfetched, kept"
)
_SELECT = f"SELECT {_FIELDS} FROM workspaces"
_INSERT = f"INSERT INTO workspaces ({_FIELDS}) VALUES ({', '.join('?' * 21)})"
# The sandbox of a workspace counts while its row lives; what has ended holds nothing.
_FREE = (
    "NOT EXISTS (SELECT 1 FROM sandboxes WHERE sandboxes.id = workspaces.sandbox"
    " AND sandboxes.state IN ('creating', 'restoring', 'running', 'paused'))"
)


class Kept(msgspec.Struct, frozen=True):
    """The archive of an evicted workspace, and what it held. It cannot change any more, so this stays true."""

    digest: str
    bytes: int
    status: WorkspaceStatus


class WorkspaceRow(msgspec.Struct, frozen=True):
    """A workspace as the store keeps it. Its tree has the name of its id."""

    workspace: Workspace
    """`sandbox` is the last one that held it, be it alive or not."""
    holder: str | None = None
    """The service that has it in hand; None while it is ready or evicted."""
    repository: str | None = None
    base: str | None = None
    layers: tuple[str, ...] = ()
    """What its tree needs below it."""
    kept: Kept | None = None

    @property
    def id(self) -> WorkspaceId:
        return self.workspace.id

    @property
    def state(self) -> WorkspaceState:
        return self.workspace.state


class WorkspaceStore:
    def __init__(self, store: Store) -> None:
        self._store = store

    def add(self, row: WorkspaceRow) -> bool:
        """False: the name is taken."""
        try:
            self._store.execute(_INSERT, _values(row))
        except sqlite3.IntegrityError:
            return False
        return True

    def get(self, id: str) -> WorkspaceRow | None:
        return next(iter(self._all(f"{_SELECT} WHERE id = ?", (id,))), None)

    def named(self, owner: str, name: str) -> WorkspaceRow | None:
        return next(iter(self._all(f"{_SELECT} WHERE owner = ? AND name = ?", (owner, name))), None)

    def find(self, owner: str, reference: str, most: int) -> tuple[WorkspaceRow, ...]:
        """The one of that id or name; else those whose ids begin so."""
        exact = self._all(f"{_SELECT} WHERE owner = ? AND (id = ? OR name = ?) LIMIT 2", (owner, reference, reference))
        return exact or self._all(
            f"{_SELECT} WHERE owner = ? AND id >= ? AND id < ? ORDER BY id LIMIT ?",
            (owner, reference, reference + "\x7f", most),
        )

    def list(self, owner: str | None = None) -> tuple[WorkspaceRow, ...]:
        """Those used least recently first."""
        return self._all(f"{_SELECT} WHERE ? IS NULL OR owner = ? ORDER BY used_at, id", (owner, owner))

    def take(self, row: WorkspaceRow, to: WorkspaceState, holder: str) -> bool:
        """Has `holder` lead it from the state of `row` to another, with no living sandbox over it. False if anything
        was different meanwhile."""
        sql = (
            f"UPDATE workspaces SET state = ?, holder = ? WHERE id = ? AND state = ? AND holder IS ? AND epoch = ?"
            f" AND {_FREE}"
        )
        values = (to.value, holder, row.id, row.state.value, row.holder, row.workspace.epoch)
        return bool(self._store.execute(sql, values).rowcount)

    def lease(self, id: str, sandbox: SandboxId, epoch: int, used_at: float) -> bool:
        """From now on that sandbox may write, and nobody who came before. False if a living one has it, if it is not
        ready, or if another one was given that epoch."""
        sql = (
            "UPDATE workspaces SET sandbox = ?, epoch = epoch + 1, used_at = ?"
            f" WHERE id = ? AND state = 'ready' AND epoch + 1 = ? AND {_FREE}"
        )
        return bool(self._store.execute(sql, (sandbox, used_at, id, epoch)).rowcount)

    def settle(self, row: WorkspaceRow, was: WorkspaceState) -> bool:
        """Writes what came of it, if it still is what it `was` in the hands that `row` names, and lets go of it."""
        w = row.workspace
        sql = (
            "UPDATE workspaces SET state = ?, holder = NULL, branch = ?, oid = ?, observed_at = ?, repository = ?,"
            " base = ?, layers = ?, kept = ?, used_at = ?, unfetched = ? WHERE id = ? AND holder IS ? AND state = ?"
        )
        values = (
            w.state.value,
            w.branch,
            w.commit,
            w.observed_at,
            row.repository,
            row.base,
            _encode(row.layers).decode(),
            None if row.kept is None else _encode(row.kept),
            w.used_at,
            w.unfetched,
            row.id,
            row.holder,
            was.value,
        )
        return bool(self._store.execute(sql, values).rowcount)

    def lie_over(self, row: WorkspaceRow, layers: tuple[str, ...]) -> None:
        """From now on it needs these trees, whatever becomes of the one who makes it."""
        sql = "UPDATE workspaces SET layers = ? WHERE id = ? AND holder IS ?"
        self._store.execute(sql, (_encode(layers).decode(), row.id, row.holder))

    def touch(self, id: str, used_at: float) -> None:
        self._store.execute("UPDATE workspaces SET used_at = max(used_at, ?) WHERE id = ?", (used_at, id))

    def pin(self, id: str, until: float | None) -> None:
        self._store.execute("UPDATE workspaces SET pinned_until = ? WHERE id = ?", (until, id))

    def remove(self, id: str) -> None:
        self._store.execute("DELETE FROM workspaces WHERE id = ?", (id,))

    def _all(self, sql: str, values: Sequence[object]) -> tuple[WorkspaceRow, ...]:
        return tuple(_row(found) for found in self._store.execute(sql, values).fetchall())


_encode = msgspec.json.Encoder().encode
_decode_layers = msgspec.json.Decoder(tuple[str, ...]).decode
_decode_kept = msgspec.json.Decoder(Kept).decode


def _values(row: WorkspaceRow) -> tuple[object, ...]:
    w = row.workspace
    return (
        w.id,
        w.owner,
        w.name,
        w.state.value,
        row.holder,
        w.repository,
        w.branch,
        w.commit,
        w.observed_at,
        row.repository,
        row.base,
        _encode(row.layers).decode(),
        w.sandbox,
        w.epoch,
        w.disk_mib,
        w.created_at,
        w.used_at,
        w.pinned_until,
        w.submodules,
        w.unfetched,
        None if row.kept is None else _encode(row.kept),
    )


def _row(values: tuple[Any, ...]) -> WorkspaceRow:
    id, owner, name, state, holder, url, branch, oid, observed_at, repository, base, layers, *rest = values
    sandbox, epoch, disk_mib, created_at, used_at, pinned_until, submodules, unfetched, kept = rest
    workspace = Workspace(
        id=WorkspaceId(id),
        name=name,
        owner=owner,
        state=WorkspaceState(state),
        disk_mib=disk_mib,
        created_at=created_at,
        used_at=used_at,
        repository=url,
        branch=branch,
        commit=oid,
        observed_at=observed_at,
        sandbox=sandbox and SandboxId(sandbox),
        epoch=epoch,
        pinned_until=pinned_until,
        submodules=bool(submodules),
        unfetched=unfetched,
    )
    return WorkspaceRow(
        workspace, holder, repository, base, _decode_layers(layers), None if kept is None else _decode_kept(kept)
    )
