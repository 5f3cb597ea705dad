from __future__ import annotations

import re
import sqlite3
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from paddock.daemon.clock import Clock
from paddock.daemon.store import _schema
from paddock.daemon.store.database import Row, Store
from paddock.daemon.store.trees import WorkspaceTree
from paddock.errors import AlreadyExistsError, InternalError, NotConfiguredError, ResourceExhaustedError
from paddock.model import Level, Sandbox, SandboxId, SandboxSpec, State, replace
from tests.databases import schema_of


def row(
    id: str,
    *,
    name: str | None = None,
    owner: str = "me",
    state: State = State.RUNNING,
    workspace: WorkspaceTree | None = None,
    key: str | None = None,
) -> Row:
    sandbox = Sandbox(
        id=SandboxId(id),
        spec=SandboxSpec(name=name, env={"A": "b"}),
        state=state,
        level=Level.JAIL,
        backend="jail",
        template="host",
        created_at=1.0,
        expires_at=2.0,
        owner=owner,
    )
    return Row(sandbox, 5.0, "boot", workspace=workspace, idempotency_key=key, spec_digest=key and "d")


@pytest.mark.parametrize("before", [None, 0o644])
def test_no_other_user_may_read_the_file_or_its_log(tmp_path: Path, before: int | None) -> None:
    """Values of `env=` stand in them; a directory above may be opened by somebody."""
    if before is not None:
        Store(tmp_path / "db").close()
        (tmp_path / "db").chmod(before)
    store = Store(tmp_path / "db")
    store.add(row("sb_1"))
    modes = {path.name: path.stat().st_mode & 0o777 for path in tmp_path.iterdir()}
    assert modes == {"db": 0o600, "db-wal": 0o600, "db-shm": 0o600}
    store.close()


def test_what_is_stored_comes_back_equal(tmp_path: Path) -> None:
    store = Store(tmp_path / "db")
    over = WorkspaceTree("ws_1", ("bs_1",), "rp_1")
    store.add(row("sb_a", name="n"))
    store.add(row("sb_b", workspace=over))
    store.close()
    again = Store(tmp_path / "db")
    assert again.get("sb_a") == row("sb_a", name="n")
    assert again.get("sb_b") == row("sb_b", workspace=over)
    again.close()


@pytest.mark.parametrize("version", range(_schema.FIRST, _schema.VERSION))
def test_a_file_of_each_version_before_comes_to_the_schema_of_a_new_one(tmp_path: Path, version: int) -> None:
    _made_by(tmp_path / "old", version)
    for name in ("old", "new"):
        Store(tmp_path / name).close()
    assert schema_of(tmp_path / "old") == schema_of(tmp_path / "new")


def test_what_a_file_of_a_version_before_has_is_kept(tmp_path: Path) -> None:
    """The values are those that the first version with workspaces, policies and secrets wrote; with the note that it
    kept of its migrations."""
    _made_by(tmp_path / "db", 11)
    workspace = WorkspaceTree("ws_1", ("bs_1",), "rp_1")
    paused = row("sb_a", name="n", state=State.PAUSED, workspace=workspace, key="k")
    paused = replace(paused, layers=("tp_2", "tp_1"), sandbox=replace(paused.sandbox, reason="it rests"))
    db = sqlite3.connect(tmp_path / "db")
    db.execute("CREATE TABLE alembic_version (version_num VARCHAR(32) NOT NULL)")
    db.execute("INSERT INTO alembic_version VALUES ('0011')")
    db.execute("INSERT INTO leases VALUES ('reaper', 'boot:1:2:3', 1, 2.0)")
    for table, id, holder in (("snapshots", "sn_whole", None), ("snapshots", "sn_half", "boot:1:2:3")):
        db.execute(f"INSERT INTO {table} VALUES (?, '', ?, '', '{{}}', '{{}}', 0.0, ?, NULL, NULL)", (id, id, holder))
    encoded = (msgspec.json.encode(paused.sandbox.spec), msgspec.json.encode(workspace))
    db.execute(
        "INSERT INTO sandboxes VALUES ('sb_a', 'me', 'n', 'paused', 'jail', 'jail', 'host', ?, 1.0, 2.0, NULL, NULL,"
        " 'it rests', 5.0, 'boot', 'boot:1:2:3', NULL, NULL, ?, 0, 'tp_2 tp_1', NULL)",
        encoded,
    )
    db.execute("INSERT INTO idempotency_keys VALUES ('me', 'k', 'd', 'sb_a', 1.0)")
    db.commit()
    db.close()
    store = Store(tmp_path / "db")
    assert store.get("sb_a") == store.by_name("me", "n", living=True) == paused
    whole = store.execute("SELECT id, is_whole FROM snapshots ORDER BY id", ()).fetchall()
    assert whole == [("sn_half", 0), ("sn_whole", 1)], "what was being made by a service of that version goes"
    store.close()
    assert "alembic_version" not in {name for name, _ in schema_of(tmp_path / "db")}


def test_checkouts_of_before_submodules_were_asked_for_have_them(tmp_path: Path) -> None:
    _made_by(tmp_path / "db", 12)
    db = sqlite3.connect(tmp_path / "db")
    db.execute("INSERT INTO bases VALUES ('bs_1', 'rp_1', 'c', 'b', NULL, 1, 1)")
    db.commit()
    db.close()
    store = Store(tmp_path / "db")
    assert store.execute("SELECT submodules, unfetched FROM bases", ()).fetchall() == [(1, 0)]
    store.close()


def _made_by(path: Path, version: int) -> None:
    """A database as that version left it."""
    db = sqlite3.connect(path)
    for script in _schema.SCRIPTS[: version - _schema.FIRST + 1]:
        db.executescript(script)
    db.execute(f"PRAGMA user_version = {version}")
    db.close()


def test_no_script_has_a_semicolon_within_a_statement() -> None:
    """`upgrade` splits scripts there."""
    for script in _schema.SCRIPTS:
        assert "TRIGGER" not in script.upper()
        assert not [literal for literal in re.findall("'[^']*'|\"[^\"]*\"", script) if ";" in literal]
        assert all(map(sqlite3.complete_statement, (f"{one};" for one in script.split(";") if one.strip())))


@pytest.mark.parametrize(("version", "hint"), [(99, "upgrade paddock"), (10, "another state directory")])
def test_a_newer_schema_is_refused_with_the_next_step(tmp_path: Path, version: int, hint: str) -> None:
    Store(tmp_path / "db").close()
    db = sqlite3.connect(tmp_path / "db")
    db.execute(f"PRAGMA user_version = {version}")
    db.close()
    with pytest.raises(NotConfiguredError, match=hint):
        Store(tmp_path / "db")


def test_an_interrupted_migration_has_not_begun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _made_by(tmp_path / "db", 13)
    before = schema_of(tmp_path / "db")
    monkeypatch.setattr(_schema, "SCRIPTS", (*_schema.SCRIPTS, "CREATE TABLE more (id); no SQL"))
    with pytest.raises(InternalError, match="syntax error"):
        Store(tmp_path / "db")
    monkeypatch.undo()
    assert schema_of(tmp_path / "db") == before
    store = Store(tmp_path / "db")
    assert store.list() == ()
    store.close()


def test_a_name_is_free_again_when_its_sandbox_has_ended(tmp_path: Path) -> None:
    store = Store(tmp_path / "db")
    store.add(row("sb_a", name="n"))
    with pytest.raises(AlreadyExistsError):
        store.add(row("sb_b", name="n"))
    store.add(row("sb_c", name="n", owner="other"))
    store.move(row("sb_a", name="n"), State.FAILED)
    store.add(row("sb_b", name="n"))
    found = store.by_name("me", "n", living=True)
    assert found is not None
    assert found.id == "sb_b"
    store.close()


def test_a_refused_name_does_not_use_up_the_key(tmp_path: Path) -> None:
    store = Store(tmp_path / "db")
    store.add(row("sb_a", name="n"))
    with pytest.raises(AlreadyExistsError):
        store.add(row("sb_b", name="n", key="k"))
    assert store.add(row("sb_b", key="k")) is None
    known = store.add(row("sb_c", key="k"))
    assert known is not None
    assert known.id == "sb_b"
    assert store.get("sb_c") is None
    store.close()


def test_a_writer_that_waits_too_long_is_told_so(tmp_path: Path) -> None:
    store = Store(tmp_path / "db", busy_seconds=0.05)
    other = sqlite3.connect(tmp_path / "db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(ResourceExhaustedError, match="another writer"):
        store.add(row("sb_a"))
    other.execute("ROLLBACK")
    other.close()
    store.add(row("sb_a"))
    store.close()


def test_what_was_written_survives_kill_9(tmp_path: Path) -> None:
    Store(tmp_path / "db").close()
    code = (
        "import os, sys, pathlib; from paddock.daemon.store.database import Store\n"
        "Store(pathlib.Path(sys.argv[1])).execute('INSERT INTO workshops (id) VALUES (?)', ('wo_1',))\n"
        "os.kill(os.getpid(), 9)"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path / "db")], check=False)
    store = Store(tmp_path / "db")
    assert store.execute("SELECT id FROM workshops", ()).fetchall() == [("wo_1",)]
    store.close()


def test_pruning_forgets_only_what_ended_long_ago(tmp_path: Path) -> None:
    times = iter((10.0, 20.0))
    store = Store(tmp_path / "db", Clock(wall=lambda: next(times)))
    for id in ("sb_a", "sb_b", "sb_c"):
        store.add(row(id, key=id))
    store.move(row("sb_a"), State.FAILED)
    store.move(row("sb_b"), State.FAILED)
    store.prune(15.0)
    assert [r.id for r in store.list(ended=True)] == ["sb_b", "sb_c"]
    assert store.add(row("sb_d", key="sb_a")) is None
    store.checkpoint()
    store.close()


def test_of_what_programs_inside_made_only_the_last_are_remembered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("paddock.daemon.store.database._ENDED_NESTED", 2)
    times = iter((10.0, 20.0, 30.0, 40.0))
    store = Store(tmp_path / "db", Clock(wall=lambda: next(times)))
    for id in ("sb_a", "sb_b", "sb_c", "sb_d"):
        store.add(made := row(id, owner="nested:sb_z" if id != "sb_a" else "local:0"))
        store.move(made, State.FAILED)
    store.prune(5.0)
    assert [r.id for r in store.list(ended=True)] == ["sb_a", "sb_c", "sb_d"]
    assert not store._rows, "none of them lives"  # pyright: ignore[reportPrivateUsage]
    store.close()
