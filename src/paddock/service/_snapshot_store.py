# ruff: noqa: S608 (statements are put together from the constants below, never from values)
"""Rows of snapshots, in the store's file and transactions."""

from __future__ import annotations

import sqlite3
from typing import Any

import msgspec

from paddock.errors import AlreadyExists
from paddock.model import SandboxSpec, Snapshot, SnapshotId, Template

from ._store import Store
from ._workspace_tree import WorkspaceTree

_OF_SNAPSHOT = ("id", "owner", "name", "source", "created_at", "policy")
"""These columns hold the fields of those names as they are."""
_COLUMNS = (*_OF_SNAPSHOT, "template", "spec", "is_whole", "workspace")
_SELECT = f"SELECT {', '.join(_COLUMNS)} FROM snapshots"
_INSERT = f"INSERT INTO snapshots ({', '.join(_COLUMNS)}) VALUES (:{', :'.join(_COLUMNS)})"
_encode = msgspec.json.Encoder().encode
_decode_spec = msgspec.json.Decoder(SandboxSpec).decode
_decode_workspace = msgspec.json.Decoder(WorkspaceTree).decode
_decode_template = msgspec.json.Decoder(Template).decode


class SnapshotRow(msgspec.Struct, frozen=True):
    """A snapshot as the store keeps it."""

    snapshot: Snapshot
    template: Template
    """What the source was made from, as it was then."""
    is_whole: bool = False
    """False while it is being made."""
    workspace: WorkspaceTree | None = None
    """A copy of what the source had at /workspace, at the same instant."""

    @property
    def id(self) -> SnapshotId:
        return self.snapshot.id

    @property
    def for_sleep(self) -> bool:
        """It belongs to its source, which sleeps on it, and nobody else sees it."""
        return self.snapshot.owner == self.snapshot.source


class SnapshotStore:
    def __init__(self, store: Store) -> None:
        self._store = store

    def add(self, row: SnapshotRow) -> None:
        """AlreadyExists: the name is taken."""
        s = row.snapshot
        values = {
            **{name: getattr(s, name) for name in _OF_SNAPSHOT},
            "template": _encode(row.template),
            "spec": _encode(s.spec),
            "is_whole": row.is_whole,
            "workspace": row.workspace and _encode(row.workspace),
        }
        try:
            self._store.execute(_INSERT, values)
        except sqlite3.IntegrityError:
            raise AlreadyExists(
                f"a snapshot is already named {s.name!r}", hint=f"delete it or take another name: {s.name}"
            ) from None

    def whole(self, id: str) -> None:
        """From now on it can be used."""
        self._store.execute("UPDATE snapshots SET is_whole = 1 WHERE id = ?", (id,))

    def slept_on(self, id: str) -> bool:
        """A living sandbox wakes from it."""
        sql = "SELECT 1 FROM sandboxes WHERE restoring = ? AND state IN ('restoring', 'paused')"
        return self._store.execute(sql, (id,)).fetchone() is not None

    def remove(self, id: str) -> None:
        self._store.execute("DELETE FROM snapshots WHERE id = ?", (id,))

    def get(self, id: str) -> SnapshotRow | None:
        return self._store.one(_row, f"{_SELECT} WHERE id = ?", (id,))

    def find(self, owner: str, reference: str) -> tuple[SnapshotRow, ...]:
        """The one of that id or name; else those whose ids begin so."""
        return tuple(map(_row, self._store.named(_SELECT, owner, reference)))

    def list(self, owner: str | None = None, source: str | None = None) -> tuple[SnapshotRow, ...]:
        where = "(? IS NULL OR owner = ?) AND (? IS NULL OR source = ?)"
        sql = f"{_SELECT} WHERE {where} ORDER BY created_at, id"
        return self._store.every(_row, sql, (owner, owner, source, source))


def _row(values: tuple[Any, ...]) -> SnapshotRow:
    found = dict(zip(_COLUMNS, values, strict=True))
    template, workspace = _decode_template(found["template"]), found["workspace"]
    of = {name: found[name] for name in _OF_SNAPSHOT}
    snapshot = Snapshot(**of, spec=_decode_spec(found["spec"]), template=template.name)
    return SnapshotRow(snapshot, template, bool(found["is_whole"]), workspace and _decode_workspace(workspace))
