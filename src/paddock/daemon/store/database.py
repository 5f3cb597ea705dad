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
from typing import Generic, Protocol, TypeAlias, TypeVar

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
from paddock.model.caller import SessionProcess

from . import _schema
from ._table import Table
from .trees import WORKSPACE_OF, WorkspaceTree

LEAST_PREFIX = 6
_CANDIDATES = 8

_ALIVE = "ended_at IS NULL"

_ENDED_NESTED = 1000
_PRUNE_NESTED = (
    "DELETE FROM sandboxes WHERE owner LIKE 'nested:%' AND ended_at <="
    " (SELECT ended_at FROM sandboxes WHERE owner LIKE 'nested:%' ORDER BY ended_at DESC LIMIT 1 OFFSET ?)"
)
_ROWS = 8192
"""Rows in memory, at most: those of more sandboxes than one machine holds."""


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
    instance_id: int = 0
    """The number of this sandbox among those with its id. A rollback raises it: facts about one don't hold for the
    next."""
    idempotency_key: str | None = None
    spec_digest: str | None = None
    """That of the spec which came with the key: the same one must come with it each time."""
    sessions: tuple[SessionProcess, ...] = ()
    """Those that made it or connected to it, unless it is persistent. It ends with the last of them."""

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


_SANDBOXES = Table("sandboxes", Row, model.Sandbox, json=("spec", "workspace", "layers", "sessions"))


class HasId(Protocol):
    @property
    def id(self) -> str: ...


R = TypeVar("R")
T = TypeVar("T", bound=HasId)
S = TypeVar("S", bound=msgspec.Struct)
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

    def add(self, row: Row, *, also: Callable[[Row], None] | None = None) -> Row | None:
        """Record a new sandbox, or return the one that was made with its idempotency key. Raises AlreadyExistsError if
        the name is taken. `also` runs in the same transaction, and undoes it by raising."""
        if also is None:
            return self._insert(row)
        with self.writing():
            known = self._insert(row)
            if known is None:
                also(row)
        return known

    def _insert(self, row: Row) -> Row | None:
        try:
            self._write(row, _SANDBOXES.insert, _SANDBOXES.values(row))
        except sqlite3.IntegrityError:
            sql = f"{_SANDBOXES.select} WHERE owner = ? AND idempotency_key = ?"
            if (known := self.one(_SANDBOXES.row, sql, (row.sandbox.owner, row.idempotency_key))) is not None:
                return known
            raise AlreadyExistsError(
                f"a living sandbox is already named {row.sandbox.spec.name!r}",
                hint=f"take another name, or end that one first: paddock kill {row.sandbox.spec.name}",
            ) from None
        return None

    def get(self, id: str) -> Row | None:
        """Return a row from memory: it is valid until the next write. Every verb asks for its sandbox, most of them
        twice."""
        if self._db.total_changes != self._written or len(self._rows) > _ROWS:
            self._forget()
        row = self._rows.get(id)
        if row is None and (row := self.one(_SANDBOXES.row, f"{_SANDBOXES.select} WHERE id = ?", (id,))) is not None:
            self._remember(row)
        return row

    def _remember(self, row: Row) -> None:
        """Keep it in memory while it lives. Programs inside may end one after the other, each with a large spec."""
        if has_ended(row):
            self._rows.pop(row.id, None)
        else:
            self._rows[row.id] = row

    def existing(self, id: str) -> Row:
        """Return the row that was there before. Raises NotFoundError if it is gone."""
        row = self.get(id)
        if row is None:
            raise NotFoundError(f"no sandbox {id!r}", sandbox=id)
        return row

    def _write(self, row: Row, sql: str, values: Values) -> None:
        """Execute what leaves a sandbox with `row`, and every other one as it was."""
        known = self._db.total_changes == self._written
        self.execute(sql, values)
        if known:
            self._remember(row)
            self._living, self._written = None, self._db.total_changes

    def _forget(self) -> None:
        self._rows.clear()
        self._living, self._written = None, self._db.total_changes

    def by_name(self, owner: str, name: str, *, living: bool) -> Row | None:
        """Return the living one of that name, or the one that ended last."""
        state = _ALIVE if living else f"NOT {_ALIVE}"
        sql = f"{_SANDBOXES.select} WHERE owner = ? AND name = ? AND {state} ORDER BY created_at DESC LIMIT 1"
        return self.one(_SANDBOXES.row, sql, (owner, name))

    def by_prefix(self, owner: str, prefix: str) -> tuple[Row, ...]:
        return self.beginning(_SANDBOXES.row, _SANDBOXES.select, owner, prefix)

    def beginning(self, make: Callable[..., R], select: str, owner: str, prefix: str) -> tuple[R, ...]:
        """Return what `select` says of those of the owner whose ids begin so, and of no more than `exactly_one`
        tells."""
        if len(prefix) <= len("sb_"):  # all ids begin so: `paddock kill s` is a slip
            return ()
        # A range, so that the primary key is used and a caller's wildcard means nothing.
        sql = f"{select} WHERE owner = ? AND id >= ? AND id < ? ORDER BY id LIMIT {_CANDIDATES + 1}"
        return self.every(make, sql, (owner, prefix, prefix + "\x7f"))

    def list(self, owner: str | None = None, *, ended: bool = False) -> tuple[Row, ...]:
        """Return the living ones, or all, oldest first; of one owner also what programs inside its sandboxes made."""
        rows = self.every(_SANDBOXES.row, f"{_SANDBOXES.select} ORDER BY created_at, id") if ended else self._alive()
        if owner is None:
            return rows
        owners = {owner, *(model.nested_principal(row.id).id for row in rows if row.sandbox.owner == owner)}
        return tuple(row for row in rows if row.sandbox.owner in owners)

    def _alive(self) -> tuple[Row, ...]:
        if self._db.total_changes != self._written:
            self._forget()
        if self._living is None:
            sql = f"{_SANDBOXES.select} WHERE {_ALIVE} ORDER BY created_at, id"
            self._living = self.every(_SANDBOXES.row, sql)
            self._rows.update((row.id, row) for row in self._living)
        return self._living

    def move(
        self,
        row: Row,
        to: State,
        *,
        limit: model.Limit | None = None,
        reason: str | None = None,
        restoring: str | None = None,
        instance_id: int | None = None,
    ) -> Row:
        """Record that the sandbox of `row` is `to` from now on, and return its new row. Nothing else changes a state.
        `instance_id`: its new number. One that was never whole releases its idempotency key when it ends.

        Raises InvalidStateError if that move isn't legal from its current state, or it was restored since `row` was
        read. It doesn't await between check and write.
        """
        now = self.existing(row.id)
        if now.instance_id != row.instance_id:
            raise InvalidStateError(f"sandbox {row.id} was taken back to a snapshot meanwhile", state=now.state.value)
        if to not in LEGAL[now.state]:
            raise InvalidStateError(
                f"sandbox {row.id} is {now.state.value}; it cannot become {to.value}", state=now.state.value
            )
        moved = replace(
            now,
            sandbox=replace(now.sandbox, state=to, limit=limit, reason=reason),
            restoring=restoring,
            instance_id=now.instance_id if instance_id is None else instance_id,
        )
        changed = ("state", "reason", "restoring", "instance_id")
        if not LEGAL[to]:
            ended = replace(moved.sandbox, ended_at=self._clock.wall(), kept_until=None, left_seconds=None)
            moved = replace(moved, sandbox=ended)
            changed = (*changed, "limit", "ended_at", "kept_until", "left_seconds")
            if now.state is State.CREATING:
                moved = replace(moved, idempotency_key=None)
                changed = (*changed, "idempotency_key")
        self._write(moved, *_SANDBOXES.update(moved, *changed))
        return moved

    def set_deadline(self, row: Row) -> bool:
        """Record its deadline and what is left of its TTL, as `row` has them. Return False if it has ended."""
        sql, values = _SANDBOXES.update(row, "expires_at", "deadline", "boot_id", "left_seconds", "kept_until")
        return bool(self.execute(f"{sql} AND {_ALIVE}", values).rowcount)

    def join(self, id: str, session: SessionProcess | None) -> None:
        """Record that a sandbox, unless it has ended or is persistent, doesn't end before that session."""
        row = None if session is None else self.get(id)
        if row is None or has_ended(row) or row.sandbox.spec.persistent or session in row.sessions:
            return
        row = replace(row, sessions=(*row.sessions, session))
        self._write(row, *_SANDBOXES.update(row, "sessions"))

    def backends(self) -> frozenset[str]:
        """Return the backends that rows name, those of ended sandboxes included."""
        return frozenset(self.every(str, "SELECT DISTINCT backend FROM sandboxes"))

    def prune(self, before: float) -> None:
        """Forget what ended before that time. Of those that programs inside a sandbox made, remember only the last:
        such a program may make and kill one after the other."""
        self.execute("DELETE FROM sandboxes WHERE ended_at < ?", (before,))
        self.execute(_PRUNE_NESTED, (_ENDED_NESTED,))

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
        hint = f"free space on the disk of {path.parent}"
        if name.startswith("SQLITE_CANTOPEN"):
            hint += ", or raise `ulimit -n`"
        return ResourceExhaustedError(f"{path} cannot be written: {error}", hint=hint)
    if name.startswith("SQLITE_BUSY"):
        return ResourceExhaustedError(f"{path} is held by another writer: {error}", hint="try again")
    return InternalError(f"{path}: {error}")


class SnapshotRow(msgspec.Struct, frozen=True):
    """A snapshot as the store keeps it."""

    snapshot: Snapshot
    made_from: Template
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


_SNAPSHOTS = Table("snapshots", SnapshotRow, Snapshot, json=("spec", "made_from", "workspace"))


class _Rows(Generic[S]):
    """The rows of a table in which each has an owner, and may have a name."""

    def __init__(self, store: Store, table: Table[S]) -> None:
        self._store, self._table = store, table

    def add(self, row: S) -> None:
        self._store.execute(self._table.insert, self._table.values(row))

    def get(self, id: str) -> S | None:
        return self._store.one(self._table.row, f"{self._table.select} WHERE id = ?", (id,))

    def find(self, owner: str, reference: str) -> tuple[S, ...]:
        """Return the one of that id or name; else those whose ids begin so."""
        exact = f"{self._table.select} WHERE owner = ? AND (id = ? OR name = ?) LIMIT 2"
        found = self._store.every(self._table.row, exact, (owner, reference, reference))
        return found or self._store.beginning(self._table.row, self._table.select, owner, reference)

    def remove(self, id: str) -> None:
        self._store.execute(f"DELETE FROM {self._table.name} WHERE id = ?", (id,))  # noqa: S608 (its own name)


class SnapshotStore(_Rows[SnapshotRow]):
    def __init__(self, store: Store) -> None:
        super().__init__(store, _SNAPSHOTS)

    def add(self, row: SnapshotRow) -> None:
        """Add a row. Raises AlreadyExistsError if the name is taken."""
        try:
            super().add(row)
        except sqlite3.IntegrityError:
            raise AlreadyExistsError(
                f"a snapshot is already named {row.snapshot.name!r}",
                hint=f"take another name, or delete that one first: paddock snapshot rm {row.snapshot.name}",
            ) from None

    def whole(self, id: str) -> None:
        """Mark it usable."""
        self._store.execute("UPDATE snapshots SET is_whole = 1 WHERE id = ?", (id,))

    def move_name(self, snapshot: Snapshot) -> None:
        """Give a snapshot its name, and take it from the one that has it."""
        with self._store.writing():
            values = (snapshot.owner, snapshot.name)
            self._store.execute("UPDATE snapshots SET name = NULL WHERE owner = ? AND name = ?", values)
            self._store.execute("UPDATE snapshots SET name = ? WHERE id = ?", (snapshot.name, snapshot.id))

    def is_hibernation(self, id: str) -> bool:
        """Tell whether a living sandbox wakes from it."""
        return any(row.restoring == id for row in self._store.list())

    def list(self, owner: str | None = None, source: str | None = None) -> tuple[SnapshotRow, ...]:
        where = "(? IS NULL OR owner = ?) AND (? IS NULL OR source = ?)"
        sql = f"{_SNAPSHOTS.select} WHERE {where} ORDER BY created_at, id"
        return self._store.every(_SNAPSHOTS.row, sql, (owner, owner, source, source))


class WorkspaceArchive(msgspec.Struct, frozen=True):
    """The archive of an evicted workspace, and what it held. It cannot change any more, so this stays true."""

    digest: str
    bytes: int
    status: model.WorkspaceStatus


class WorkspaceRow(msgspec.Struct, frozen=True):
    """A workspace as the store keeps it. Its tree has the name of its id."""

    workspace: Workspace
    """`sandbox` is the last one that held it, be it alive or not."""
    cache: str | None = None
    """The repository whose objects it borrows."""
    base: str | None = None
    layers: tuple[str, ...] = ()
    """Trees below its own."""
    kept: WorkspaceArchive | None = None

    @property
    def id(self) -> model.WorkspaceId:
        return self.workspace.id

    @property
    def state(self) -> WorkspaceState:
        return self.workspace.state


_WORKSPACES = Table("workspaces", WorkspaceRow, Workspace, json=("layers", "kept"))
_SETTLED = ("state", "branch", "commit", "observed_at", "cache", "base", "layers", "kept", "unfetched")


class WorkspaceStore(_Rows[WorkspaceRow]):
    def __init__(self, store: Store) -> None:
        super().__init__(store, _WORKSPACES)

    def named(self, owner: str, name: str) -> WorkspaceRow | None:
        return self._store.one(_WORKSPACES.row, f"{_WORKSPACES.select} WHERE owner = ? AND name = ?", (owner, name))

    def list(self, owner: str | None = None) -> tuple[WorkspaceRow, ...]:
        """Those used least recently first."""
        sql = f"{_WORKSPACES.select} WHERE ? IS NULL OR owner = ? ORDER BY used_at, id"
        return self._store.every(_WORKSPACES.row, sql, (owner, owner))

    def give(self, id: str, sandbox: SandboxId, used_at: float) -> None:
        """Record that this sandbox writes the workspace from now on, in a new epoch."""
        sql = "UPDATE workspaces SET sandbox = ?, epoch = epoch + 1, used_at = ? WHERE id = ?"
        self._store.execute(sql, (sandbox, used_at, id))

    def set_state(self, row: WorkspaceRow, state: WorkspaceState) -> WorkspaceRow:
        """Write `row` with that state, and return it. The caller holds the lane of the workspace alone."""
        row = replace(row, workspace=replace(row.workspace, state=state))
        self._store.execute(*_WORKSPACES.update(row, *_SETTLED))
        return row

    def set_layers(self, id: str, layers: tuple[str, ...]) -> None:
        """Record that the workspace needs these trees, even if making it fails."""
        text = msgspec.json.encode(layers).decode()
        self._store.execute("UPDATE workspaces SET layers = ? WHERE id = ?", (text, id))

    def touch(self, id: str, used_at: float) -> None:
        self._store.execute("UPDATE workspaces SET used_at = max(used_at, ?) WHERE id = ?", (used_at, id))

    def pin(self, id: str, until: float | None) -> None:
        self._store.execute("UPDATE workspaces SET pinned_until = ? WHERE id = ?", (until, id))
