"""A virtual machine is copied and taken back with its memory: what ran goes on, by the same verbs as everywhere."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from paddock import Sandbox, Workspace
from paddock.errors import InvalidArgumentError, LevelUnavailableError
from paddock.linux import processes
from paddock.model import State
from paddock.supervisor import layout
from paddock.supervisor.records import Records
from tests.conftest import SandboxFactory
from tests.levels.conftest import SMALL

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
# It has a number in memory and nowhere else, and says it, one more each time, when asked.
COUNTER = """
import os
os.mkfifo("/tmp/ask"); os.mkfifo("/tmp/answer")
number = 0
while True:
    with open("/tmp/ask") as ask: ask.read()
    number += 1
    with open("/tmp/answer", "w") as answer: print(number, os.getpid(), file=answer)
"""


def ask(machine: Sandbox) -> list[int]:
    said = machine.exec("echo > /tmp/ask; cat /tmp/answer", check=True, timeout_seconds=120).stdout
    return [int(word) for word in said.split()]


def emulator_of(machine: Sandbox, state_dir: Path) -> Path:
    """Where the kernel shows the process in which the machine runs."""
    directory = os.open(state_dir / layout.RUN, os.O_RDONLY | os.O_DIRECTORY)
    try:
        record = Records(directory).read(machine.id)
    finally:
        os.close(directory)
    assert record is not None
    (pid,) = [one.pid for one in processes.below(record.pid) if one.name.startswith(b"qemu")]
    return Path(f"/proc/{pid}")


@pytest.fixture
def machine(sandbox: SandboxFactory) -> Sandbox:
    try:
        made = sandbox(level="microvm", limits=SMALL, ttl_seconds=900)
    except LevelUnavailableError as error:
        pytest.skip(str(error))
    made.start(["python3", "-c", COUNTER], background=True)
    made.exec("until test -p /tmp/answer; do sleep 0.1; done", check=True, timeout_seconds=120)
    return made


def test_a_fork_goes_on_where_its_parent_stood(machine: Sandbox) -> None:
    first, pid = ask(machine)
    children = machine.fork(2)
    try:
        assert [ask(one) for one in (*children, machine)] == [[first + 1, pid]] * 3
        names = {one.exec("cat /proc/sys/kernel/hostname /etc/machine-id").stdout for one in (*children, machine)}
        assert len(names) == 3
    finally:
        for child in children:
            child.kill()


def test_a_rollback_takes_memory_and_files_back_to_one_instant_as_often_as_one_likes(machine: Sandbox) -> None:
    first, pid = ask(machine)
    machine.filesystem.write("file", "before")
    snapshot = machine.snapshot()
    expires_at = machine.info.expires_at
    for _ in range(2):
        machine.filesystem.write("file", "after")
        assert ask(machine) == [first + 1, pid]
        machine.rollback(snapshot)
        assert machine.filesystem.read_text("file") == "before"
    assert ask(machine) == [first + 1, pid]
    assert machine.refresh().expires_at == expires_at
    machine.delete_snapshot(snapshot)


def test_a_named_snapshot_goes_on_when_its_machine_is_dead(sandbox: SandboxFactory, machine: Sandbox) -> None:
    first, pid = ask(machine)
    machine.snapshot("machine-kept")
    machine.kill()
    with pytest.raises(InvalidArgumentError, match="cannot go on at level 'jail'"):
        sandbox(snapshot="machine-kept", level="jail")
    again = [sandbox(snapshot="machine-kept", ttl_seconds=900) for _ in range(2)]
    assert [one.level for one in again] == ["microvm", "microvm"]
    assert [ask(one) for one in again] == [[first + 1, pid]] * 2
    again[0].delete_snapshot("machine-kept")
    assert ask(again[0]) == [first + 2, pid]


def test_asleep_on_disk_it_has_no_machine_and_wakes_where_it_stood(machine: Sandbox, shared_state: Path) -> None:
    first, pid = ask(machine)
    machine.filesystem.write("file", "kept")
    emulator = emulator_of(machine, shared_state)
    machine.pause(to_disk=True, force=True)
    assert machine.state is State.PAUSED
    assert not emulator.exists()
    assert machine.usage().memory_bytes == 0
    assert machine.refresh().state is State.PAUSED
    assert ask(machine) == [first + 1, pid]
    assert machine.filesystem.read_text("file") == "kept"
    assert machine.refresh().state is State.RUNNING
    assert machine.snapshots() == ()


def test_a_rollback_takes_the_workspace_of_a_machine_back_with_its_memory(sandbox: SandboxFactory) -> None:
    sandbox()  # the state directory is this test's from here on
    workspace = Workspace.open("machine-memory")
    try:
        machine = sandbox(level="microvm", workspace=workspace.name, limits=SMALL, ttl_seconds=900)
        machine.exec("exec 7>>log; echo one >&7; (until test -e go; do sleep 0.1; done; echo two >&7) &", check=True)
        snapshot = machine.snapshot()
        machine.exec("rm log; touch other", check=True)
        machine.rollback(snapshot)
        said = machine.exec("ls; touch go; until grep -q two log; do sleep 0.1; done; cat log", timeout_seconds=120)
        assert said.stdout == "log\none\ntwo\n"
        machine.delete_snapshot(snapshot)
        machine.kill()
    finally:
        workspace.delete(discard=True)
