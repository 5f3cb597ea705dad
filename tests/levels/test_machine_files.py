"""What a virtual machine sees of the host's files is what a jail sees, and goes on in a fork with memory."""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path

import pytest

from paddock import Mount, MountMode, Sandbox, Workspace
from paddock.errors import LevelUnavailableError
from tests.conftest import SandboxFactory
from tests.levels.conftest import SMALL

pytestmark = pytest.mark.timeout(900)  # a machine that is emulated
RANDOM = Path(__file__).parents[1] / "vmm" / "random_files.py"
# It writes by an open descriptor and by one whose file has no name any more, and says how far it is.
WRITER = """
exec 7>>log 8<>gone; rm gone; echo nameless >&8
( n=0; while sleep 0.1; do n=$((n+1)); echo $n >&7; cat /proc/self/fd/8 >new; mv new seen; done ) >/dev/null 2>&1 &
until test -s seen && test -s log; do sleep 0.1; done
"""
GOES_ON = 'before=$(wc -l <log); until test "$(wc -l <log)" -gt "$before"; do sleep 0.1; done; cat seen'


@pytest.fixture
def workspace(sandbox: SandboxFactory) -> Generator[Workspace]:
    sandbox()  # the state directory is this test's from here on
    opened = Workspace.open("machine-files")
    yield opened
    opened.delete(discard=True)


@pytest.fixture
def machine(workspace: Workspace) -> Generator[Sandbox]:
    try:
        made = Sandbox.create(level="microvm", workspace=workspace.name, limits=SMALL, ttl_seconds=900)
    except LevelUnavailableError as error:
        pytest.skip(str(error))
    with made:
        yield made


@pytest.mark.slow
def test_a_fork_with_memory_keeps_its_files_open_and_each_has_its_own(machine: Sandbox) -> None:
    machine.exec(WRITER, check=True)
    with machine.fork() as child, child.fork() as grandchild:
        for one in (grandchild, child, machine):
            assert one.exec(GOES_ON, check=True, timeout_seconds=120).stdout == "nameless\n"
        child.exec("echo child >mine", check=True)
        assert machine.exec("ls; test ! -e mine").exit_code == 0
        assert grandchild.exec("test ! -e mine").exit_code == 0


@pytest.mark.slow
def test_a_fork_in_the_middle_of_random_work_loses_nothing_on_either_side(machine: Sandbox) -> None:
    """Each side goes on with the same steps, and compares with a twin on the machine's own disk at the end."""
    machine.filesystem.write("/home/user/random_files.py", RANDOM.read_text())
    start = (
        "mkdir here ~/there; (python3 ~/random_files.py 3 3000 /workspace/here ~/there >~/said 2>&1; echo $? >~/ended)"
        ' >/dev/null 2>&1 & until test "$(find here | wc -l)" -gt 5; do sleep 0.1; done'
    )
    machine.exec(start, check=True, timeout_seconds=120)
    with machine.fork() as child:
        for one in (child, machine):
            end = "until test -s ~/ended; do sleep 0.2; done; cat ~/said ~/ended"
            said = one.exec(end, check=True, timeout_seconds=600).stdout
            assert said.startswith("alike "), said


def test_directories_of_the_host_are_mounted_as_they_were_asked_for(workspace: Workspace, tmp_path: Path) -> None:
    names = ["cow", "ro", "rw"]
    for name in names:
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_text(f"{name}\n")
    mounts = [Mount(source=str(tmp_path / name), target=f"/mnt/{name}", mode=MountMode(name)) for name in names]
    try:
        made = Sandbox.create(level="microvm", mounts=mounts, ttl_seconds=900)
    except LevelUnavailableError as error:
        pytest.skip(str(error))
    with made:
        said = made.exec(
            "mkdir /mnt/rw/made; echo in it >/mnt/rw/made/file; cat /mnt/*/file;"
            " for mode in cow rw ro; do echo new >/mnt/$mode/file; done; cat /mnt/*/file"
        )
        assert said.stdout.split() == ["cow", "ro", "rw", "new", "ro", "new"]
        assert "Read-only file system" in said.stderr
        assert [change.path for change in made.diff_mount(target="/mnt/cow").changes] == ["file"]
    assert [(tmp_path / name / "file").read_text() for name in names] == ["cow\n", "ro\n", "new\n"]
    assert (tmp_path / "rw/made/file").read_text() == "in it\n"
