# ruff: noqa: S608 (statements are put together from the constants below, never from values)
"""Control state in one SQLite file: the only SQL.

The statements are plain and go through the standard library; the schema is in `_schema.py`.

Durability: a write that returned survives `kill -9` of every process; after a power loss the last writes may be missing
(WAL with synchronous=NORMAL), never torn. That is enough: no sandbox survives a power loss either.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing, contextmanager
from itertools import starmap
from pathlib import Path
from typing import Any, Protocol, TypeAlias, TypeVar

import msgspec

from paddock import model
from paddock.daemon.clock import Clock
from paddock.errors import (
    AlreadyExistsError,
    InternalError,
    InvalidArgumentError,
    InvalidStateError,
    NotConfiguredError,
    NotFoundError,
    PaddockError,
    ResourceExhaustedError,
)
from paddock.model import LEGAL, SandboxId, Snapshot, State, Template, Workspace, WorkspaceState, replace

from . import _schema
from .trees import WORKSPACE_OF, WorkspaceTree

LEAST_PREFIX = 6
_CANDIDATES = 8

_OF_SANDBOX = (
    *("id", "owner", "backend", "template", "created_at", "expires_at", "ended_at", "reason", "origin", "policy"),
)
_OF_ROW = ("deadline", "boot_id", "restoring", "incarnation")
"""These columns hold the fields of those names as they are."""
_COLUMNS = (
    *(*_OF_SANDBOX, *_OF_ROW),
    *("name", "state", "level", "spec", "limit_name", "left_seconds", "workspace", "layers"),
)
_SELECT = f"SELECT {', '.join(_COLUMNS)} FROM sandboxes"
_ALIVE = "state IN ('creating', 'restoring', 'running', 'paused')"
_INSERT = f"INSERT INTO sandboxes ({', '.join(_COLUMNS)}) VALUES (:{', :'.join(_COLUMNS)})"

_MOVE = (
    "UPDATE sandboxes SET state = ?, ended_at = ?, limit_name = ?, reason = ?, restoring = ?, incarnation = ?"
    " WHERE id = ?"
)

_ROWS = 8192
"""Rows in memory, at most: those of more sandboxes than one machine holds."""

_decode_workspace = msgspec.json.Decoder(WorkspaceTree).decode
_encode = msgspec.json.Encoder().encode
_decode_spec = msgspec.json.Decoder(model.SandboxSpec).decode


class Row(msgspec.Struct, frozen=True):
    """A sandbox as the store keeps it: what callers see, and what only services need."""

    sandbox: model.Sandbox
    deadline: float
    """CLOCK_BOOTTIME seconds, of the boot `boot_id`. That of its retention, where its TTL stands still."""
    boot_id: str
    restoring: str | None = None
    """The snapshot that it is being rolled back to, or that it hibernates on."""
    workspace: WorkspaceTree | None = None
    layers: tuple[str, ...] = ()
    """The trees that its own lies over."""
    incarnation: int = 0
    """The number of this sandbox among those with its id. A rollback raises it: facts about one don't hold for the
    next."""

    @property
    def id(self) -> SandboxId:
        return self.sandbox.id

    @property
    def state(self) -> State:
        return self.sandbox.state

    @property
    def hibernated(self) -> bool:
        """On disk: nothing of it runs anywhere, and `restoring` is what it wakes from."""
        return self.restoring is not None and self.state is State.PAUSED

    @property
    def own_trees(self) -> tuple[str, ...]:
        """Return the trees that are deleted with the sandbox: its own, and its workspace if that is a copy."""
        if self.workspace is not None and self.workspace.tree == self.id + WORKSPACE_OF:
            return self.id, self.workspace.tree
        return (self.id,)


class HasId(Protocol):
    @property
    def id(self) -> str: ...


R = TypeVar("R")
T = TypeVar("T", bound=HasId)
Values: TypeAlias = Sequence[object] | Mapping[str, object]


def exactly_one(found: Sequence[T], noun: str, reference: str, *, hint: str) -> T:
    """Return the one that a caller means. Raises NotFoundError if there is none, InvalidArgumentError if several."""
    if len(found) == 1:
        return found[0]
    if not found:
        raise NotFoundError(f"no {noun} {reference[:64]!r}", hint=hint, **{noun: reference})
    candidates = [one.id for one in found[:_CANDIDATES]]
    more = " and more" if len(found) > _CANDIDATES else ""
    raise InvalidArgumentError(
        f"{reference!r} is the beginning of {', '.join(candidates)}{more}",
        hint="give more characters",
        candidates=candidates,
    )


def has_ended(row: Row) -> bool:
    return not LEGAL[row.state]


class Key(msgspec.Struct, frozen=True):
    """An idempotency key: the same `digest` must come with it each time."""

    text: str
    digest: str


class ExistingKey(msgspec.Struct, frozen=True):
    """Describe the earlier use of a key."""

    id: SandboxId
    digest: str


class Store:
    """The only connection that writes, used by one thread at a time. It waits `busy_seconds` for a reader's lock."""

    def __init__(self, path: Path, clock: Clock | None = None, *, busy_seconds: float = 10.0) -> None:
        self.path, self._clock = path, clock or Clock()
        self._rows: dict[str, Row] = {}
        self._living: tuple[Row, ...] | None = None
        """What `list` returned."""
        self._written = 0
        """The number of rows that the connection had written when `_rows` and `_living` were read."""
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with _translated(path):
            self._db = _connect(path, busy_seconds)
            self._migrate()

    def add(self, row: Row, key: Key | None = None, *, also: Callable[[Row], None] | None = None) -> ExistingKey | None:
        """Record a new sandbox, or return the earlier use of `key`. Raises AlreadyExistsError if the name is taken.
        `also` runs in the same transaction, and undoes it by raising."""
        if key is None and also is None:
            self._insert(row)
            return None
        with self.writing():
            if key is not None:
                sql = "SELECT sandbox, digest FROM idempotency_keys WHERE owner = ? AND key = ?"
                if (known := self.one(ExistingKey, sql, (row.sandbox.owner, key.text))) is not None:
                    return known
            self._insert(row)
            if key is not None:
                self._write(
                    row,
                    "INSERT INTO idempotency_keys (owner, key, digest, sandbox, created_at) VALUES (?, ?, ?, ?, ?)",
                    (row.sandbox.owner, key.text, key.digest, row.id, row.sandbox.created_at),
                )
            if also is not None:
                also(row)
        return None

    def _insert(self, row: Row) -> None:
        try:
            self._write(row, _INSERT, _values(row))
        except sqlite3.IntegrityError:
            raise AlreadyExistsError(
                f"a living sandbox is already named {row.sandbox.spec.name!r}",
                hint=f"kill it or take another name: paddock kill {row.sandbox.spec.name}",
            ) from None

    def get(self, id: str) -> Row | None:
        """Return a row from memory: it is valid until the next write. Every verb asks for its sandbox, most of them
        twice."""
        if self._db.total_changes != self._written or len(self._rows) > _ROWS:
            self._forget()
        row = self._rows.get(id)
        if row is None and (row := self.one(_row, f"{_SELECT} WHERE id = ?", (id,))) is not None:
            self._rows[id] = row
        return row

    def _write(self, row: Row, sql: str, values: Values) -> None:
        """Execute what leaves a sandbox with `row`, and every other one as it was."""
        known = self._db.total_changes == self._written
        self.execute(sql, values)
        if known:
            self._rows[row.id] = row
            self._living, self._written = None, self._db.total_changes

    def _forget(self) -> None:
        self._rows.clear()
        self._living, self._written = None, self._db.total_changes

    def by_name(self, owner: str, name: str, *, living: bool) -> Row | None:
        """Return the living one of that name, or the one that ended last."""
        state = _ALIVE if living else f"NOT {_ALIVE}"
        sql = f"{_SELECT} WHERE owner = ? AND name = ? AND {state} ORDER BY created_at DESC LIMIT 1"
        return self.one(_row, sql, (owner, name))

    def by_prefix(self, owner: str, prefix: str) -> tuple[Row, ...]:
        return tuple(starmap(_row, self.beginning(_SELECT, owner, prefix)))

    def beginning(self, select: str, owner: str, prefix: str) -> list[tuple[Any, ...]]:
        """Return what `select` says of those of the owner whose ids begin so, and of no more than `the_one` tells."""
        if len(prefix) <= len("sb_"):  # all ids begin so: `paddock kill s` is a slip
            return []
        # A range, so that the primary key is used and a caller's wildcard means nothing.
        sql = f"{select} WHERE owner = ? AND id >= ? AND id < ? ORDER BY id LIMIT {_CANDIDATES + 1}"
        return self.execute(sql, (owner, prefix, prefix + "\x7f")).fetchall()

    def named(self, select: str, owner: str, reference: str) -> list[tuple[Any, ...]]:
        """Return what `select` says of the one of that id or name; else of those whose ids begin so."""
        exact = f"{select} WHERE owner = ? AND (id = ? OR name = ?) LIMIT 2"
        found = self.execute(exact, (owner, reference, reference)).fetchall()
        return found or self.beginning(select, owner, reference)

    def any_lives(self) -> bool:
        """Tell whether any sandbox lives, without reading all."""
        return self.execute(f"SELECT 1 FROM sandboxes WHERE {_ALIVE} LIMIT 1", ()).fetchone() is not None

    def list(self, owner: str | None = None, *, ended: bool = False) -> tuple[Row, ...]:
        if owner is not None or ended:
            return self._list(owner, ended)
        if self._db.total_changes != self._written:
            self._forget()
        if (living := self._living) is None:
            living = self._list(None, False)
            if len(living) <= _ROWS:
                self._living = living
                self._rows.update((row.id, row) for row in living)
        return living

    def _list(self, owner: str | None, ended: bool) -> tuple[Row, ...]:
        where = ["1 = 1" if ended else _ALIVE]
        if owner is not None:  # what programs inside his sandboxes have made is his as well
            where.append("(owner = ?1 OR owner IN (SELECT 'nested:' || id FROM sandboxes WHERE owner = ?1))")
        sql = f"{_SELECT} WHERE {' AND '.join(where)} ORDER BY created_at, id"
        return self.every(_row, sql, () if owner is None else (owner,))

    def move(
        self,
        row: Row,
        to: State,
        *,
        limit: model.Limit | None = None,
        reason: str | None = None,
        release_key: bool = False,
        restoring: str | None = None,
        incarnation: int | None = None,
    ) -> Row:
        """Record that the sandbox of `row` is `to` from now on, and return its new row. Nothing else changes a state.
        `incarnation`: its new number.

        Raises InvalidStateError if that move isn't legal from its current state, or it was restored since `row` was
        read. There is no await between check and write.
        """
        now = self.get(row.id)
        if now is None:
            raise NotFoundError(f"no sandbox {row.id!r}")
        if now.incarnation != row.incarnation:
            raise InvalidStateError(f"sandbox {row.id} was taken back to a snapshot meanwhile", state=now.state.value)
        if to not in LEGAL[now.state]:
            raise InvalidStateError(
                f"sandbox {row.id} is {now.state.value}; it cannot become {to.value}", state=now.state.value
            )
        sandbox = replace(now.sandbox, state=to, limit=limit, reason=reason)
        if not LEGAL[to]:
            sandbox = replace(sandbox, ended_at=self._clock.wall(), kept_until=None, left_seconds=None)
        own = now.incarnation if incarnation is None else incarnation
        values = (to.value, sandbox.ended_at, limit and limit.value, reason, restoring, own, row.id)
        moved = replace(now, sandbox=sandbox, restoring=restoring, incarnation=own)
        if release_key:
            with self.writing() as db:
                self._write(moved, _MOVE, values)
                db.execute("DELETE FROM idempotency_keys WHERE sandbox = ?", (row.id,))
        else:
            self._write(moved, _MOVE, values)
        return moved

    def set_deadline(self, row: Row) -> bool:
        """Record its deadline and what is left of its TTL, as `row` has them. Return False if it has ended."""
        times = ", ".join(f"{name} = :{name}" for name in ("expires_at", "deadline", "boot_id", "left_seconds"))
        return bool(self.execute(f"UPDATE sandboxes SET {times} WHERE id = :id AND {_ALIVE}", _values(row)).rowcount)

    def backends(self) -> frozenset[str]:
        """Return the backends that rows name, those of ended sandboxes included."""
        return frozenset(self.every(str, "SELECT DISTINCT backend FROM sandboxes"))

    def prune(self, before: float) -> int:
        """Forgets what ended before that time, and its idempotency keys."""
        with self.writing() as db:
            db.execute(
                "DELETE FROM idempotency_keys WHERE sandbox IN (SELECT id FROM sandboxes WHERE ended_at < ?)", (before,)
            )
            return db.execute(f"DELETE FROM sandboxes WHERE ended_at < ? AND NOT {_ALIVE}", (before,)).rowcount

    def checkpoint(self) -> None:
        """Move the write-ahead log into the file, on a separate connection: call it in a thread."""
        with _translated(self.path), closing(sqlite3.connect(self.path, timeout=1.0)) as db:
            db.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()

    def close(self) -> None:
        self._db.close()

    def one(self, make: Callable[..., R], sql: str, values: Values) -> R | None:
        """Return what `make` makes of the columns of the first row that the statement finds."""
        found = self.execute(sql, values).fetchone()
        return None if found is None else make(*found)

    def every(self, make: Callable[..., R], sql: str, values: Values = ()) -> tuple[R, ...]:
        """Return what `make` makes of the columns of each row that the statement finds."""
        return tuple(starmap(make, self.execute(sql, values).fetchall()))

    def execute(self, sql: str, values: Values) -> sqlite3.Cursor:
        """One statement, which outside of `writing` is a transaction by itself: SQLite takes the write lock before it
        reads, and waits for it."""
        try:
            return self._db.execute(sql, values)
        except sqlite3.IntegrityError:
            raise
        except sqlite3.DatabaseError as error:
            raise _translation(self.path, error) from error

    @contextmanager
    def writing(self) -> Generator[sqlite3.Connection]:
        """One transaction that takes the write lock at its start: no upgrade that could fail half-way."""
        with _translated(self.path):
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield self._db
            except BaseException:
                self._db.execute("ROLLBACK")
                self._forget()  # what was read in the transaction has not come to be
                raise
            try:
                self._db.execute("COMMIT")
            except BaseException:
                self._forget()
                raise

    def _migrate(self) -> None:
        version = int(self._db.execute("PRAGMA user_version").fetchone()[0])
        if version > _schema.VERSION or 0 < version < _schema.FIRST:
            self._db.close()
            other, hint = "an older", "take another state directory"
            if version > _schema.VERSION:
                other, hint = "a newer", "upgrade paddock"
            raise NotConfiguredError(
                f"{self.path} was written by {other} paddock"
                f" (schema {version}, this one knows {_schema.FIRST} to {_schema.VERSION})",
                hint=hint,
            )
        if version < _schema.VERSION:
            _schema.upgrade(self._db)


def _connect(path: Path, busy_seconds: float) -> sqlite3.Connection:
    # Values of `env=` stand in it. Its log and shared memory get its mode (SQLite's os_unix.c, findCreateFileMode).
    # By name: closing a descriptor of what is there would end the locks of this process's other connections.
    path.touch(mode=0o600)
    path.chmod(0o600)
    # Autocommit: transactions start explicitly. Another thread may have made the service.
    db = sqlite3.connect(path, timeout=busy_seconds, isolation_level=None, check_same_thread=False)
    db.execute("PRAGMA journal_mode = WAL")
    db.execute("PRAGMA synchronous = NORMAL")
    # A checkpoint writes and syncs; that is for a thread (`checkpoint`). This is only a limit.
    db.execute("PRAGMA wal_autocheckpoint = 10000")
    return db


@contextmanager
def _translated(path: Path) -> Generator[None]:
    try:
        yield
    except sqlite3.DatabaseError as error:
        raise _translation(path, error) from error


def _translation(path: Path, error: sqlite3.DatabaseError) -> PaddockError:
    """Return the error that a caller gets."""
    if not isinstance(error, sqlite3.OperationalError):
        return InternalError(f"{path}: {error}", hint="the file is damaged; move it away and run `paddock doctor`")
    name = error.sqlite_errorname if hasattr(error, "sqlite_errorname") else ""
    if name.startswith(("SQLITE_FULL", "SQLITE_IOERR", "SQLITE_CANTOPEN")):
        return ResourceExhaustedError(f"{path} cannot be written: {error}", hint="free disk space or descriptors")
    if name.startswith("SQLITE_BUSY"):
        return ResourceExhaustedError(f"{path} is held by another writer: {error}", hint="try again")
    return InternalError(f"{path}: {error}")


def _values(row: Row) -> dict[str, object]:
    """By column."""
    s = row.sandbox
    return {
        **{name: getattr(s, name) for name in _OF_SANDBOX},
        **{name: getattr(row, name) for name in _OF_ROW},
        "name": s.spec.name,
        "state": s.state.value,
        "level": s.level.value,
        "spec": _encode(s.spec),
        "limit_name": s.limit and s.limit.value,
        "left_seconds": s.left_seconds,
        "workspace": row.workspace and _encode(row.workspace),
        "layers": " ".join(row.layers),
    }


def _row(*values: Any) -> Row:
    found = dict(zip(_COLUMNS, values, strict=True))
    limit, workspace = found["limit_name"], found["workspace"]
    left_seconds = found["left_seconds"] if found["ended_at"] is None else None
    sandbox = model.Sandbox(
        **{name: found[name] for name in _OF_SANDBOX},
        spec=_decode_spec(found["spec"]),
        state=State(found["state"]),
        level=model.Level(found["level"]),
        limit=limit and model.Limit(limit),
        kept_until=None if left_seconds is None else found["expires_at"],
        left_seconds=left_seconds,
    )
    return Row(
        sandbox,
        **{name: found[name] for name in _OF_ROW},
        workspace=workspace and _decode_workspace(workspace),
        layers=tuple(found["layers"].split()),
    )


_OF_SNAPSHOT = ("id", "owner", "name", "source", "created_at", "policy")
_SNAPSHOT_COLUMNS = (*_OF_SNAPSHOT, "template", "spec", "is_whole", "workspace")
_SNAPSHOTS = f"SELECT {', '.join(_SNAPSHOT_COLUMNS)} FROM snapshots"
_INSERT_SNAPSHOT = f"INSERT INTO snapshots ({', '.join(_SNAPSHOT_COLUMNS)}) VALUES (:{', :'.join(_SNAPSHOT_COLUMNS)})"
_decode_template = msgspec.json.Decoder(Template).decode


class SnapshotRow(msgspec.Struct, frozen=True):
    """A snapshot as the store keeps it."""

    snapshot: Snapshot
    template: Template
    """The template that the source was made from, as it was then."""
    is_whole: bool = False
    """False while it is being made."""
    workspace: WorkspaceTree | None = None
    """A copy of what the source had at /workspace, at the same instant."""

    @property
    def id(self) -> model.SnapshotId:
        return self.snapshot.id

    @property
    def for_hibernation(self) -> bool:
        """Whether it belongs to its source, which hibernates on it; other callers don't see it."""
        return self.snapshot.owner == self.snapshot.source


class SnapshotStore:
    def __init__(self, store: Store) -> None:
        self._store = store

    def add(self, row: SnapshotRow) -> None:
        """Add a row. Raises AlreadyExistsError if the name is taken."""
        s = row.snapshot
        values = {
            **{name: getattr(s, name) for name in _OF_SNAPSHOT},
            "template": _encode(row.template),
            "spec": _encode(s.spec),
            "is_whole": row.is_whole,
            "workspace": row.workspace and _encode(row.workspace),
        }
        try:
            self._store.execute(_INSERT_SNAPSHOT, values)
        except sqlite3.IntegrityError:
            raise AlreadyExistsError(
                f"a snapshot is already named {s.name!r}", hint=f"delete it or take another name: {s.name}"
            ) from None

    def whole(self, id: str) -> None:
        """Mark it usable."""
        self._store.execute("UPDATE snapshots SET is_whole = 1 WHERE id = ?", (id,))

    def is_hibernation(self, id: str) -> bool:
        """Tell whether a living sandbox wakes from it."""
        sql = "SELECT 1 FROM sandboxes WHERE restoring = ? AND state IN ('restoring', 'paused')"
        return self._store.execute(sql, (id,)).fetchone() is not None

    def remove(self, id: str) -> None:
        self._store.execute("DELETE FROM snapshots WHERE id = ?", (id,))

    def get(self, id: str) -> SnapshotRow | None:
        return self._store.one(_snapshot_row, f"{_SNAPSHOTS} WHERE id = ?", (id,))

    def find(self, owner: str, reference: str) -> tuple[SnapshotRow, ...]:
        """Return the one of that id or name; else those whose ids begin so."""
        return tuple(starmap(_snapshot_row, self._store.named(_SNAPSHOTS, owner, reference)))

    def list(self, owner: str | None = None, source: str | None = None) -> tuple[SnapshotRow, ...]:
        where = "(? IS NULL OR owner = ?) AND (? IS NULL OR source = ?)"
        sql = f"{_SNAPSHOTS} WHERE {where} ORDER BY created_at, id"
        return self._store.every(_snapshot_row, sql, (owner, owner, source, source))


def _snapshot_row(*values: Any) -> SnapshotRow:
    found = dict(zip(_SNAPSHOT_COLUMNS, values, strict=True))
    template, workspace = _decode_template(found["template"]), found["workspace"]
    of = {name: found[name] for name in _OF_SNAPSHOT}
    snapshot = Snapshot(**of, spec=_decode_spec(found["spec"]), template=template.name)
    return SnapshotRow(snapshot, template, bool(found["is_whole"]), workspace and _decode_workspace(workspace))


_OF_WORKSPACE = (
    *("id", "owner", "name", "branch", "observed_at", "sandbox", "epoch", "disk_mib", "created_at", "used_at"),
    *("pinned_until", "unfetched"),
)
_OF_WORKSPACE_ROW = ("repository", "base")
"""That of the workspace's repository is `url`."""
_WORKSPACE_COLUMNS = (*_OF_WORKSPACE, *_OF_WORKSPACE_ROW, "state", "url", "oid", "submodules", "layers", "kept")
_WORKSPACES = f"SELECT {', '.join(_WORKSPACE_COLUMNS)} FROM workspaces"
_INSERT_WORKSPACE = (
    f"INSERT INTO workspaces ({', '.join(_WORKSPACE_COLUMNS)}) VALUES (:{', :'.join(_WORKSPACE_COLUMNS)})"
)
_SETTLED = ("state", "branch", "oid", "observed_at", "repository", "base", "layers", "kept", "unfetched")
_SETTLE = f"UPDATE workspaces SET {', '.join(f'{name} = :{name}' for name in _SETTLED)} WHERE id = :id"
_decode_layers = msgspec.json.Decoder(tuple[str, ...]).decode


class Kept(msgspec.Struct, frozen=True):
    """The archive of an evicted workspace, and what it held. It cannot change any more, so this stays true."""

    digest: str
    bytes: int
    status: model.WorkspaceStatus


_decode_kept = msgspec.json.Decoder(Kept).decode


class WorkspaceRow(msgspec.Struct, frozen=True):
    """A workspace as the store keeps it. Its tree has the name of its id."""

    workspace: Workspace
    """`sandbox` is the last one that held it, be it alive or not."""
    repository: str | None = None
    base: str | None = None
    layers: tuple[str, ...] = ()
    """Trees below its own."""
    kept: Kept | None = None

    @property
    def id(self) -> model.WorkspaceId:
        return self.workspace.id

    @property
    def state(self) -> WorkspaceState:
        return self.workspace.state


class WorkspaceStore:
    def __init__(self, store: Store) -> None:
        self._store = store

    def add(self, row: WorkspaceRow) -> None:
        self._store.execute(_INSERT_WORKSPACE, _workspace_values(row))

    def get(self, id: str) -> WorkspaceRow | None:
        return self._store.one(_workspace_row, f"{_WORKSPACES} WHERE id = ?", (id,))

    def named(self, owner: str, name: str) -> WorkspaceRow | None:
        return self._store.one(_workspace_row, f"{_WORKSPACES} WHERE owner = ? AND name = ?", (owner, name))

    def find(self, owner: str, reference: str) -> tuple[WorkspaceRow, ...]:
        """Return the one of that id or name; else those whose ids begin so."""
        return tuple(starmap(_workspace_row, self._store.named(_WORKSPACES, owner, reference)))

    def list(self, owner: str | None = None) -> tuple[WorkspaceRow, ...]:
        """Those used least recently first."""
        sql = f"{_WORKSPACES} WHERE ? IS NULL OR owner = ? ORDER BY used_at, id"
        return self._store.every(_workspace_row, sql, (owner, owner))

    def give(self, id: str, sandbox: SandboxId, used_at: float) -> None:
        """Record that this sandbox writes the workspace from now on, in a new epoch."""
        sql = "UPDATE workspaces SET sandbox = ?, epoch = epoch + 1, used_at = ? WHERE id = ?"
        self._store.execute(sql, (sandbox, used_at, id))

    def set_state(self, row: WorkspaceRow, state: WorkspaceState) -> WorkspaceRow:
        """Write `row` with that state, and return it. The caller holds the lane of the workspace alone."""
        row = replace(row, workspace=replace(row.workspace, state=state))
        self._store.execute(_SETTLE, _workspace_values(row))
        return row

    def set_layers(self, id: str, layers: tuple[str, ...]) -> None:
        """Record that the workspace needs these trees, even if making it fails."""
        self._store.execute("UPDATE workspaces SET layers = ? WHERE id = ?", (_encode(layers).decode(), id))

    def touch(self, id: str, used_at: float) -> None:
        self._store.execute("UPDATE workspaces SET used_at = max(used_at, ?) WHERE id = ?", (used_at, id))

    def pin(self, id: str, until: float | None) -> None:
        self._store.execute("UPDATE workspaces SET pinned_until = ? WHERE id = ?", (until, id))

    def remove(self, id: str) -> None:
        self._store.execute("DELETE FROM workspaces WHERE id = ?", (id,))


def _workspace_values(row: WorkspaceRow) -> dict[str, object]:
    """By column."""
    w = row.workspace
    return {
        **{name: getattr(w, name) for name in _OF_WORKSPACE},
        **{name: getattr(row, name) for name in _OF_WORKSPACE_ROW},
        "state": w.state.value,
        "url": w.repository,
        "oid": w.commit,
        "submodules": w.submodules,
        "layers": _encode(row.layers).decode(),
        "kept": row.kept and _encode(row.kept),
    }


def _workspace_row(*values: Any) -> WorkspaceRow:
    found = dict(zip(_WORKSPACE_COLUMNS, values, strict=True))
    workspace = Workspace(
        **{name: found[name] for name in _OF_WORKSPACE},
        state=WorkspaceState(found["state"]),
        repository=found["url"],
        commit=found["oid"],
        submodules=bool(found["submodules"]),
    )
    return WorkspaceRow(
        workspace,
        **{name: found[name] for name in _OF_WORKSPACE_ROW},
        layers=_decode_layers(found["layers"]),
        kept=found["kept"] and _decode_kept(found["kept"]),
    )
