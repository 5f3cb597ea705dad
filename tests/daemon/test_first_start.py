"""The daemon starts on a state directory from before there was one. `tests/data/state_f1f7b83` says what it has."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import sqlite3
import subprocess
import sys
import tarfile
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest

from paddock import Sandbox
from paddock.audit import verify
from paddock.client import default_transport, stop_daemon
from paddock.daemon.clock import boot_id
from paddock.daemon.store.database import Store
from paddock.errors import NotConfiguredError, SandboxDiedError
from paddock.model import (
    Action,
    ListApprovals,
    ListRepositories,
    ListSecrets,
    ListSnapshots,
    ListWorkspaces,
)
from tests.conftest import gateway_pid
from tests.daemon.conftest import daemon_pid
from tests.databases import schema_of
from tests.orphans import wait_until

_OLD = Path(__file__).parents[1] / "data" / "state_f1f7b83"
_AS_LONG_AS = 900.0
"""An approval waits for a quarter of an hour."""


@pytest.fixture
def old_state(state_dir: Path) -> Path:
    """The state directory, as if this user had made it in this boot."""
    shutil.copytree(_OLD / "audit", state_dir / "audit")
    for name in ("keeper.json", "vault.key"):
        shutil.copy(_OLD / name, state_dir)
    for file in (*state_dir.glob("*"), *state_dir.glob("audit/*")):
        file.chmod(0o700 if file.is_dir() else 0o600)
    (state_dir / "keeper/stage/dev").mkdir(mode=0o700, parents=True)  # where its supervisor mounted
    with tarfile.open(_OLD / "trees.tar.gz") as trees:
        # With its owners, which newer Pythons leave out unless told otherwise. 3.11.2 has no such filters.
        trees.extraction_filter = getattr(tarfile, "fully_trusted_filter", None)
        trees.extractall(state_dir, numeric_owner=True)
    with closing(sqlite3.connect(state_dir / "paddock.db")) as db:
        db.executescript((_OLD / "state.sql").read_text().replace("local:0", f"local:{os.getuid()}"))
        ends, clock = time.time() + _AS_LONG_AS, time.clock_gettime(time.CLOCK_BOOTTIME) + _AS_LONG_AS
        db.execute("UPDATE approvals SET expires_at = ?, deadline = ?, boot_id = ?", (ends, clock, boot_id()))
        db.commit()
    return state_dir


_RENAMED = {"incarnation": "instance_id"}


def _listed() -> dict[str, list[dict[str, Any]]]:
    return json.loads((_OLD / "listed.json").read_text().replace("local:0", f"local:{os.getuid()}"))


@pytest.mark.parametrize(
    ("kind", "action"),
    [
        ("workspaces", ListWorkspaces()),
        ("snapshots", ListSnapshots()),
        ("repositories", ListRepositories()),
        ("approvals", ListApprovals(all=True)),
        ("secrets", ListSecrets()),
    ],
)
def test_what_an_older_paddock_has_made_is_listed_as_it_was(kind: str, action: Action[Any], old_state: Path) -> None:
    found = json.loads(msgspec.json.encode(default_transport(old_state).perform(action)))
    before = _listed()[kind]
    assert before
    for one in (*found, *before):
        one.pop("expires_at", None)  # of an approval: the fixture moves it
    assert [_as_of(old, one) for old, one in zip(before, found, strict=True)] == before


def _as_of(old: Any, value: Any) -> Any:
    """Leave out the fields of `value` that `old` doesn't know, and name the others as it does."""
    if not isinstance(old, dict):
        return value
    return {name: _as_of(old[name], value[_RENAMED.get(name, name)]) for name in old}


def test_the_database_gets_the_schema_of_a_new_one(old_state: Path, tmp_path: Path) -> None:
    assert "alembic_version" in {name for name, _ in schema_of(old_state / "paddock.db")}
    Sandbox.list(transport=default_transport(old_state))
    Store(tmp_path / "new").close()
    assert schema_of(old_state / "paddock.db") == schema_of(tmp_path / "new")


def test_the_record_goes_on_where_the_older_paddock_has_ended_it(old_state: Path) -> None:
    before = verify(old_state / "audit")
    assert before.ok
    assert before.records
    default_transport(old_state).perform(ListWorkspaces())
    stop_daemon(old_state)
    after = verify(old_state / "audit")
    assert after.ok, after.problem
    assert after.records > before.records
    assert after.segments == before.segments


@pytest.mark.both
def test_work_goes_on_in_a_workspace_of_an_older_paddock(old_state: Path) -> None:
    with Sandbox.create(level="jail", workspace="fix", transport=default_transport(old_state)) as box:
        assert box.filesystem.read_text("/workspace/README.md") == "# project\nmore\n"
        assert box.exec("git -C /workspace log --format=%s").stdout == "first\n"


def test_a_snapshot_of_an_older_paddock_makes_sandboxes_and_they_fork(old_state: Path) -> None:
    transport = default_transport(old_state)
    with Sandbox.create(level="jail", transport=transport) as box:
        box.snapshot("ours")
    stop_daemon(old_state)
    with closing(sqlite3.connect(old_state / "paddock.db")) as db:  # its own template was another machine's
        ours = "(SELECT made_from FROM snapshots WHERE name = 'ours')"
        db.execute(f"UPDATE snapshots SET made_from = {ours} WHERE name = 'before'")
        db.commit()
    with Sandbox.create(snapshot="before", transport=transport) as box, box.fork() as child:
        for one in (box, child):
            assert one.exec("cat README.md kept").stdout == "# project\nmore\nkept\n"
            assert one.policy == _listed()["snapshots"][0]["policy"]
        child.filesystem.write("kept", "by the child")
        assert box.exec("git status --short").stdout == " M README.md\n?? kept\n"


@pytest.mark.parametrize(
    ("boot", "why"),
    [
        ("this one", r"failed at .*: it is gone, and no daemon recorded why"),
        ("an earlier one", r"ended at .*: the machine was restarted"),
    ],
)
def test_a_sandbox_that_an_older_paddock_left_running_is_recorded_as_ended_with_the_reason(
    boot: str, why: str, old_state: Path
) -> None:
    id, ends = "sb_0tzk8h61s7azr7ty", time.clock_gettime(time.CLOCK_BOOTTIME) + _AS_LONG_AS
    with closing(sqlite3.connect(old_state / "paddock.db")) as db:
        changed = "state = 'running', ended_at = NULL, reason = NULL, deadline = ?"
        db.execute(f"UPDATE sandboxes SET {changed} WHERE id = ?", (ends, id))
        if boot == "this one":
            db.execute("UPDATE sandboxes SET boot_id = ?", (boot_id(),))
        db.commit()
    transport = default_transport(old_state)
    assert Sandbox.list(transport=transport) == ()
    with pytest.raises(SandboxDiedError, match=why):
        Sandbox.connect(id, transport=transport)
    with Sandbox.create(level="jail", workspace="idea", transport=transport) as box:
        assert box.exec("true").ok


def test_a_gateway_that_outlives_its_daemon_is_no_older_program(state_dir: Path) -> None:
    policy = {"egress": {"allow": [{"host": "api.test", "methods": ["GET"], "paths": ["/**"]}]}}
    with Sandbox.create(level="jail", policy=policy, transport=default_transport(state_dir)) as box:
        gateway, old = gateway_pid(state_dir), daemon_pid(state_dir)
        assert gateway is not None
        os.kill(old, signal.SIGKILL)
        assert box.id in {one.id for one in Sandbox.list(transport=default_transport(state_dir))}
        assert daemon_pid(state_dir) != old
        assert gateway_pid(state_dir) == gateway


# As `audit/_log.py` of that commit holds a segment.
_HOLDS = """
import fcntl, os, sys
fd = os.open(sys.argv[1], os.O_RDWR | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW)
fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
print(os.getpid(), flush=True)
sys.stdin.read()
"""


def test_a_program_of_an_older_paddock_that_still_works_there_is_named(old_state: Path) -> None:
    segment = max((old_state / "audit").iterdir())
    before = (old_state / "paddock.db").read_bytes()
    with subprocess.Popen(
        [sys.executable, "-c", _HOLDS, str(segment)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as older:
        assert older.stdout is not None
        pid = int(older.stdout.readline())
        with pytest.raises(
            NotConfiguredError, match=rf"older paddock \(pid {pid}\) still works in {old_state}"
        ) as refused:
            Sandbox.list(transport=default_transport(old_state))
        assert refused.value.hint is not None
        assert f"kill {pid}" in refused.value.hint
        assert (old_state / "paddock.db").read_bytes() == before
        older.communicate()
    assert Sandbox.list(transport=default_transport(old_state)) == ()


# A program in a sandbox that has made itself a file of the same path, and locks it.
_PRETENDS = """
import fcntl, os, sys, time
os.makedirs(os.path.dirname(sys.argv[1]), exist_ok=True)
file = open(sys.argv[1], "w")
fcntl.flock(file, fcntl.LOCK_EX)
time.sleep(600)
"""


def test_a_program_in_a_sandbox_that_pretends_to_be_one_keeps_no_daemon_from_its_start(state_dir: Path) -> None:
    default_transport(state_dir).perform(ListWorkspaces())
    segment = next((state_dir / "audit").glob("*.jsonl"))
    with Sandbox.create(level="jail", transport=default_transport(state_dir)) as box:
        background = f"python3 -c {shlex.quote(_PRETENDS)} {segment}"
        box.start(background, background=True)
        assert wait_until(lambda: box.exec(["sh", "-c", f"flock -n {segment} true"]).exit_code == 1)
        old = daemon_pid(state_dir)
        os.kill(old, signal.SIGKILL)
        assert box.id in {one.id for one in Sandbox.list(transport=default_transport(state_dir))}
        assert daemon_pid(state_dir) != old
