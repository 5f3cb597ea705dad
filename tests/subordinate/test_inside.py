"""What an ordinary user's sandboxes can do that have a whole range of ids, and what they still can't."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from paddock import Mount, Sandbox, Workspace
from paddock.backends.jail import _look
from paddock.linux.subordinate_ids import SubordinateIds
from paddock.supervisor.layout import POOL, RUN
from paddock.supervisor.records import Record, Records
from tests.conftest import supervisors
from tests.orphans import wait_until

Create = Callable[..., Sandbox]


def sh(sandbox: Sandbox, *commands: str, user: str = "root") -> list[str]:
    """The words that the commands print, one after the other."""
    return sandbox.exec("; ".join(commands), user=user, check=True).stdout.split()


def record(state_dir: Path, sandbox: Sandbox) -> Record:
    directory = os.open(state_dir / RUN, os.O_RDONLY | os.O_DIRECTORY)
    try:
        found = Records(directory).read(sandbox.id)
    finally:
        os.close(directory)
    assert found is not None
    return found


def test_there_are_root_and_any_other_user(create: Create) -> None:
    sandbox = create()
    assert sh(sandbox, "id -u", "id -G") == ["0", "0"]
    assert sh(sandbox, "id -u", "id -G", user="user") == ["1000", "1000"]
    sh(sandbox, "mkdir /srv/db", "chown 105:106 /srv/db", "chmod 700 /srv/db")
    become = "setpriv --reuid=105 --regid=106 --clear-groups"
    assert sh(sandbox, f"{become} touch /srv/db/x", "stat -c %u:%g /srv/db/x", f"{become} id -u") == ["105:106", "105"]
    assert sh(sandbox, "setpriv --reuid=65535 --regid=65535 --groups=4,5 id -u") == ["65535"]
    assert sh(sandbox, "setpriv --groups=4,5 id -G") == ["0", "4", "5"]
    assert sandbox.exec("ls /srv/db").exit_code != 0
    assert sandbox.exec("setpriv --reuid=0 id").exit_code != 0


ATTACKS = (
    *("kill -9 1", "prlimit --pid 1 --nproc=1", "cat /proc/1/environ", "ls /proc/1/fd", "nsenter -t 1 -m true"),
    *("mount -t tmpfs x /mnt", "unshare -n true", "chroot / true", "hostname other", "ip link set lo down"),
)


@pytest.mark.parametrize("attack", ATTACKS)
def test_root_has_no_power_over_what_serves_the_sandbox(create: Create, attack: str) -> None:
    sandbox = create()
    assert sandbox.exec(attack, user="root").exit_code != 0
    assert sh(sandbox, "id -u") == ["0"]


def test_pid_1_is_one_of_the_subordinate_ids(create: Create, whole_shared: Path, ids: SubordinateIds) -> None:
    sandbox = create()
    lines = _look.posture(record(whole_shared, sandbox))
    assert [line for line in lines if line.status != "ok"] == []
    assert f"uid {ids.uid} of the host, which is one of your subordinate ids" in {line.detail for line in lines}


def test_a_table_of_processes_has_the_users_of_inside(create: Create, whole_shared: Path) -> None:
    sandbox = create()
    kept = record(whole_shared, sandbox)
    his = "setpriv --reuid=33 --regid=33 --clear-groups sleep 100"
    with sandbox.start(his, user="root"), sandbox.start("sleep 100"):
        assert wait_until(lambda: {process.uid for process in _look.table(kept)} == {0, 33, 1000})


def test_owners_and_file_capabilities_are_those_of_copies_too(create: Create) -> None:
    sandbox = create()
    sh(sandbox, "mkdir /srv/d", "touch /srv/d/f", "chown -R 33:34 /srv/d", "chmod 600 /srv/d/f", "chmod 0 /srv/d")
    sh(sandbox, "setcap cap_kill+ep /srv/d/f")
    look = ("stat -c %u:%g:%a /srv/d /srv/d/f", "getcap /srv/d/f", "ls /srv")
    before = sh(sandbox, *look)
    assert before == ["33:34:0", "33:34:600", "/srv/d/f", "cap_kill=ep", "d"]
    child, snapshot = sandbox.fork(), sandbox.snapshot()
    try:
        assert sh(child, *look) == before
    finally:
        child.kill()
    sh(sandbox, "rm -rf /srv/d", "touch /srv/later")
    sandbox.rollback(snapshot)
    assert sh(sandbox, *look) == before
    other = create(snapshot=snapshot.id)
    assert sh(other, *look) == before


def test_nothing_is_left_of_what_others_than_the_user_own(create: Create, whole_shared: Path) -> None:
    sandbox = create()
    sh(sandbox, "mkdir -p /srv/a/b/c", "chown -R 33 /srv/a", "chmod 0 /srv/a/b/c /srv/a/b /srv/a", "chmod 1777 /srv")
    assert list((whole_shared / POOL).glob("sb_*"))
    sandbox.kill()
    assert wait_until(lambda: not [*(whole_shared / POOL).glob("sb_*"), *(whole_shared / POOL).glob(".gone-*")])


def test_the_users_own_files_are_his_inside_and_what_root_makes_of_them_comes_back_as_his(
    create: Create, tmp_path: Path
) -> None:
    (tmp_path / "mine").write_text("old\n")
    (tmp_path / "private").write_text("secret\n")
    (tmp_path / "private").chmod(0o600)
    sandbox = create(mounts=[Mount(source=str(tmp_path))])
    look = ("stat -c %u:%a /workspace/private", "stat -c %u /workspace", "cat /workspace/private")
    assert sh(sandbox, *look, user="user") == ["1000:600", "1000", "secret"]
    sh(sandbox, "cd /workspace", "echo new >mine", "echo roots >made", "chmod 600 made", "chown 33 made")
    changes = {change.path: change.kind.value for change in sandbox.diff_mount().changes}
    assert changes == {"made": "added", "mine": "modified"}
    assert (tmp_path / "mine").read_text() == "old\n"
    sandbox.promote_mount()
    assert (tmp_path / "mine").read_text() == "new\n"
    assert (tmp_path / "made").read_text() == "roots\n"
    assert {path.stat().st_uid for path in tmp_path.iterdir()} == {os.getuid()}


def test_a_workspace_keeps_its_owners(create: Create) -> None:
    Workspace.open("subordinate")
    with create(workspace="subordinate") as sandbox:
        assert sh(sandbox, "stat -c %u /workspace", user="user") == ["1000"]
        sh(sandbox, "touch /workspace/roots", "install -o 33 -m 600 /dev/null /workspace/his")
        sh(sandbox, "echo mine >/workspace/mine", user="user")
    with create(workspace="subordinate") as sandbox:
        look = "stat -c %n:%u /workspace/roots /workspace/his /workspace/mine"
        assert sh(sandbox, look) == ["/workspace/roots:0", "/workspace/his:33", "/workspace/mine:1000"]


def test_the_next_supervisor_ends_what_the_one_before_has_left(create: Create, whole_shared: Path) -> None:
    sandbox = create()
    (before,) = supervisors(whole_shared)
    os.kill(before, signal.SIGKILL)
    assert wait_until(lambda: bool(set(supervisors(whole_shared)) - {before}))
    assert sh(sandbox, "id -u") == ["0"]
    pid = record(whole_shared, sandbox).pid
    sandbox.kill()
    assert wait_until(lambda: not Path(f"/proc/{pid}").exists())


def test_doctor_says_which_ids_there_are(create: Create, whole_shared: Path) -> None:
    create()
    done = subprocess.run(
        [sys.executable, "-m", "paddock", "doctor", "--level", "jail", "--json"], capture_output=True, check=True
    )
    (line,) = [check for check in json.loads(done.stdout)["checks"] if check["name"] == "ids"]
    assert line["status"] == "weak"
    assert "subordinate ids of yours" in line["detail"]


@pytest.mark.user
def test_an_ordinary_user_who_asks_for_nothing_has_one_id(sandbox: Create) -> None:
    made = sandbox()
    assert made.exec("cat /proc/self/uid_map", check=True).stdout.split() == ["1000", "0", "1"]
