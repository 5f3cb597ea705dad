"""What a sandbox has synced is there again, whatever died: daemon, supervisor, guest, sandbox, machine."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from paddock import Sandbox, Workspace
from paddock.errors import InvalidStateError
from paddock.linux import btrfs, pidfd
from tests.conformance.trees import Root
from tests.conftest import supervisors
from tests.daemon.conftest import daemon_pid
from tests.faults.conftest import program as program  # a fixture
from tests.faults.test_restart import _on_the_next_boot, _power_off
from tests.in_process import in_process
from tests.orphans import PATIENCE_SECONDS, wait_until
from tests.workspaces.conftest import Opener

BEFORE = """
from paddock import Workspace
Workspace.open("T42")
made = Sandbox.create(workspace="T42", name="T42", persistent=True, ttl_seconds=600)
made.exec("mkdir d; echo kept >d/file; chmod 640 d/file; sync", check=True)
other = Sandbox.create(persistent=True, ttl_seconds=600)
say(id=made.id, other=other.id)
input()
"""
AFTER = """
from paddock import Workspace
from paddock.errors import SandboxDiedError
try:
    Sandbox.connect("T42").exec("true")
    said = "it lives"
except SandboxDiedError as error:
    said = str(error)
    with Sandbox.create(workspace="T42", name="T42", ttl_seconds=60) as new:
        out = new.exec("cat d/file; stat -c %a:%U d/file; echo more >>d/file").stdout
else:
    with Sandbox.connect("T42") as old:
        out = old.exec("cat d/file; stat -c %a:%U d/file; echo more >>d/file").stdout
for sandbox in Sandbox.list():
    sandbox.kill()
info = Workspace.open("T42").info
with Sandbox.create(workspace="T42", ttl_seconds=60) as third:
    assert third.exec("cat d/file").stdout == "kept\\nmore\\n"
say(said=said, out=out, sandbox=info.sandbox, epoch=info.epoch)
"""


@pytest.mark.parametrize("victims", ["daemon", "supervisor", "guest", "everything"])
def test_g8_what_was_synced_is_there_whoever_was_killed(
    program: Callable[..., Any], state_dir: Path, victims: str
) -> None:
    first = program(BEFORE)
    facts = first.hears()
    guest = int(json.loads((state_dir / "run" / facts["id"] / "state.json").read_bytes())["pid"])
    daemon = [daemon_pid(state_dir)]
    pids = {"daemon": daemon, "supervisor": supervisors(state_dir), "guest": [guest]}
    pids["everything"] = [pid for part in pids.values() for pid in part]
    ended = pidfd.open(guest)
    for pid in pids[victims]:
        os.kill(pid, signal.SIGKILL)
    if guest in pids[victims]:  # else what comes next may still find it
        assert pidfd.wait(ended, PATIENCE_SECONDS)
    os.close(ended)
    if victims in ("daemon", "everything"):
        first.kill()
    else:
        first.close()
    heard = program(AFTER).hears()
    assert heard["out"] == "kept\n640:user\n"
    assert heard["sandbox"] is None
    if victims in ("guest", "everything"):
        assert "paddock up --task T42" in heard["said"]


@pytest.mark.root
def test_what_was_synced_is_there_after_a_restart_of_the_machine(
    program: Callable[..., Any], state_dir: Path, tmp_path: Path
) -> None:
    if shutil.which("unshare") is None or not Path("/proc/self/timens_offsets").exists():
        pytest.skip("needs unshare(1) and time namespaces")
    first = program(BEFORE)
    first.hears()
    _power_off(first, state_dir)
    heard = _on_the_next_boot(AFTER, state_dir, tmp_path)
    assert "the machine was restarted" in heard["said"]
    assert heard["out"] == "kept\n640:user\n"
    assert (heard["sandbox"], heard["epoch"]) == (None, 2)


def test_another_template_shows_the_same_files_with_the_same_owners(
    opened: Opener, sandbox: Callable[..., Sandbox]
) -> None:
    workspace = opened()
    told: list[str] = []
    for template in ("host", "code-interpreter", "host"):
        one = sandbox(template=template, workspace=workspace.name, ttl_seconds=300)
        told.append(one.exec(f"echo {template} >>log; stat -c '%U %a' . log; cat log", check=True).stdout)
        one.kill()
    assert [text.splitlines()[:2] for text in told] == [["user 755", "user 644"]] * 3
    assert told[-1].splitlines()[2:] == ["host", "code-interpreter", "host"]


def test_a_kill_takes_no_tree_and_needs_no_leave(opened: Opener, sandbox: Callable[..., Sandbox]) -> None:
    workspace = opened()
    one = sandbox(workspace=workspace.name, ttl_seconds=300)
    one.exec("echo mine >mine", check=True)
    one.start("while :; do echo more >>mine; done", background=True)
    one.kill()
    assert sandbox(workspace=workspace.name, ttl_seconds=300).exec("head -1 mine").stdout == "mine\n"


def test_its_disk_limit_is_the_workspaces_own(opened: Opener, sandbox: Callable[..., Sandbox]) -> None:
    workspace = opened(disk_mib=16)
    one = sandbox(workspace=workspace.name, ttl_seconds=300)
    if "disk" not in one_enforces():
        pytest.skip("this pool limits no disk")
    result = one.exec(
        "head -c 64M /dev/urandom >/workspace/big; sync; stat -c %s /workspace/big; echo x >/root-is-fine"
    )
    assert "quota" in result.stderr.lower() or "no space" in result.stderr.lower()
    assert wait_until(lambda: one.exec("rm -f /workspace/big; echo y >/workspace/small").ok)


def one_enforces() -> set[str]:
    from paddock.client import default_transport
    from paddock.model import Diagnose

    checks = default_transport().perform(Diagnose()).checks
    return {check.name for check in checks if check.area == "storage" and check.status == "ok"}


@pytest.mark.root
def test_one_with_read_only_subvolumes_is_not_copied_in_part_and_is_deleted_whole(
    opened: Opener, over: Callable[[Workspace], Sandbox], shared_state: Path
) -> None:
    """Nothing inside can make one any more: here the host does, as a sandbox of an earlier paddock could."""
    with in_process(shared_state) as daemon:
        pool = daemon.service.workspaces._pool()
        if pool.driver != "btrfs":
            pytest.skip(f"this pool is {pool.driver}: it has no subvolumes")
        workspace = opened()
        sandbox = over(workspace)
        sandbox.exec("mkdir /workspace/d", check=True)
        with Root(pool, workspace.id) as root:
            place = os.open(root / "d", os.O_RDONLY | os.O_DIRECTORY)
            btrfs.create_subvolume(place, b"nested")
            os.chown(root / "d/nested", (root / "d").stat().st_uid, (root / "d").stat().st_gid)
            nested = os.open("nested", os.O_RDONLY | os.O_DIRECTORY, dir_fd=place)
            sandbox.exec("echo kept >/workspace/d/nested/file", check=True)
            btrfs.set_read_only(nested, True)
            for copy in (sandbox.fork, sandbox.snapshot):
                with pytest.raises(InvalidStateError, match="subvolumes"):
                    copy()
            btrfs.set_read_only(nested, False)
            # As the error says.
            sandbox.exec(
                "for d in $(find /workspace -inum 256); do cp -a $d $d.new && rm -r $d; done", check=True, user="root"
            )
            child = sandbox.fork()
            assert child.exec("cat /workspace/d/nested.new/file").stdout == "kept\n"
            child.kill()
            btrfs.create_subvolume(place, b"again")
            again = os.open("again", os.O_RDONLY | os.O_DIRECTORY, dir_fd=place)
            btrfs.set_read_only(again, True)
            for fd in (place, nested, again):
                os.close(fd)
        sandbox.kill()
        workspace.delete(discard=True)
        assert workspace.id not in pool.names()
        assert pool.unfinished() == ()
