# ruff: noqa: S608 (statements are put together from the constants below, never from values)
"""Rows of workspaces, in the store's file and transactions."""

from __future__ import annotations

from typing import Any

import msgspec

from paddock.model import SandboxId, Workspace, WorkspaceId, WorkspaceState, WorkspaceStatus, replace

from ._store import Store

_OF_WORKSPACE = (
    *("id", "owner", "name", "branch", "observed_at", "sandbox", "epoch", "disk_mib", "created_at", "used_at"),
    *("pinned_until", "unfetched"),
)
_OF_ROW = ("repository", "base")
"""These columns hold the fields of those names as they are. That of the workspace's repository is `url`."""
_COLUMNS = (*_OF_WORKSPACE, *_OF_ROW, "state", "url", "oid", "submodules", "layers", "kept")
_SELECT = f"SELECT {', '.join(_COLUMNS)} FROM workspaces"
_INSERT = f"INSERT INTO workspaces ({', '.join(_COLUMNS)}) VALUES (:{', :'.join(_COLUMNS)})"
_SETTLED = ("state", "branch", "oid", "observed_at", "repository", "base", "layers", "kept", "unfetched")
_SETTLE = f"UPDATE workspaces SET {', '.join(f'{name} = :{name}' for name in _SETTLED)} WHERE id = :id"
_encode = msgspec.json.Encoder().encode


class Kept(msgspec.Struct, frozen=True):
    """The archive of an evicted workspace, and what it held. It cannot change any more, so this stays true."""

    digest: str
    bytes: int
    status: WorkspaceStatus


class WorkspaceRow(msgspec.Struct, frozen=True):
    """A workspace as the store keeps it. Its tree has the name of its id."""

    workspace: Workspace
    """`sandbox` is the last one that held it, be it alive or not."""
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

    def add(self, row: WorkspaceRow) -> None:
        self._store.execute(_INSERT, _values(row))

    def get(self, id: str) -> WorkspaceRow | None:
        return self._store.one(_row, f"{_SELECT} WHERE id = ?", (id,))

    def named(self, owner: str, name: str) -> WorkspaceRow | None:
        return self._store.one(_row, f"{_SELECT} WHERE owner = ? AND name = ?", (owner, name))

    def find(self, owner: str, reference: str) -> tuple[WorkspaceRow, ...]:
        """The one of that id or name; else those whose ids begin so."""
        return tuple(map(_row, self._store.named(_SELECT, owner, reference)))

    def list(self, owner: str | None = None) -> tuple[WorkspaceRow, ...]:
        """Those used least recently first."""
        sql = f"{_SELECT} WHERE ? IS NULL OR owner = ? ORDER BY used_at, id"
        return self._store.every(_row, sql, (owner, owner))

    def give(self, id: str, sandbox: SandboxId, used_at: float) -> None:
        """Record that this sandbox writes the workspace from now on, in an epoch of its own."""
        sql = "UPDATE workspaces SET sandbox = ?, epoch = epoch + 1, used_at = ? WHERE id = ?"
        self._store.execute(sql, (sandbox, used_at, id))

    def settle(self, row: WorkspaceRow, state: WorkspaceState) -> WorkspaceRow:
        """Write `row` with that state, and return it. The caller holds the lane of the workspace alone."""
        row = replace(row, workspace=replace(row.workspace, state=state))
        self._store.execute(_SETTLE, _values(row))
        return row

    def lie_over(self, id: str, layers: tuple[str, ...]) -> None:
        """Record that the workspace needs these trees, whatever becomes of its making."""
        self._store.execute("UPDATE workspaces SET layers = ? WHERE id = ?", (_encode(layers).decode(), id))

    def touch(self, id: str, used_at: float) -> None:
        self._store.execute("UPDATE workspaces SET used_at = max(used_at, ?) WHERE id = ?", (used_at, id))

    def pin(self, id: str, until: float | None) -> None:
        self._store.execute("UPDATE workspaces SET pinned_until = ? WHERE id = ?", (until, id))

    def remove(self, id: str) -> None:
        self._store.execute("DELETE FROM workspaces WHERE id = ?", (id,))


_decode_layers = msgspec.json.Decoder(tuple[str, ...]).decode
_decode_kept = msgspec.json.Decoder(Kept).decode


def _values(row: WorkspaceRow) -> dict[str, object]:
    """By column."""
    w = row.workspace
    return {
        **{name: getattr(w, name) for name in _OF_WORKSPACE},
        **{name: getattr(row, name) for name in _OF_ROW},
        "state": w.state.value,
        "url": w.repository,
        "oid": w.commit,
        "submodules": w.submodules,
        "layers": _encode(row.layers).decode(),
        "kept": row.kept and _encode(row.kept),
    }


def _row(values: tuple[Any, ...]) -> WorkspaceRow:
    found = dict(zip(_COLUMNS, values, strict=True))
    workspace = Workspace(
        **{name: found[name] for name in _OF_WORKSPACE},
        state=WorkspaceState(found["state"]),
        repository=found["url"],
        commit=found["oid"],
        submodules=bool(found["submodules"]),
    )
    return WorkspaceRow(
        workspace,
        **{name: found[name] for name in _OF_ROW},
        layers=_decode_layers(found["layers"]),
        kept=found["kept"] and _decode_kept(found["kept"]),
    )
