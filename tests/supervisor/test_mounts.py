"""Directories of the host inside: what is seen, what is kept from the host, and what the host is kept from."""

from __future__ import annotations

import os
import socket
import stat
from pathlib import Path

import pytest

from paddock import Mount, MountMode
from paddock.errors import InvalidArgumentError
from paddock.supervisor.layout import TREE_ID_BASE
from tests.conformance.trees import describe
from tests.conftest import SandboxFactory

OVERLAID = (MountMode.COPY_ON_WRITE, MountMode.READ_ONLY)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    place = tmp_path / "project"
    (place / "src" / "deep").mkdir(parents=True)
    (place / "src" / "deep" / "code.py").write_text("print('hello')\n")
    (place / "README").write_text("read me\n")
    (place / "link").symlink_to("README")
    return place


def test_the_directory_is_seen_and_belongs_to_the_user(sandbox: SandboxFactory, project: Path) -> None:
    box = sandbox(mounts=[Mount(source=str(project))])
    result = box.exec("cat README link src/deep/code.py; stat -c %U . README src", check=True)
    assert result.stdout == "read me\n" * 2 + "print('hello')\n" + "user\n" * 3


def test_what_is_written_stays_inside(sandbox: SandboxFactory, project: Path) -> None:
    before = describe(project)
    box = sandbox(mounts=[Mount(source=str(project))])
    line = "echo x > README; rm -r src; mkdir -p a/b; echo y > a/b/c; chmod 700 .; ln -s a c; mv link d; ls -A"
    assert box.exec(line, check=True).stdout.split() == ["README", "a", "c", "d"]
    assert describe(project) == before


def test_nothing_is_written_to_a_read_only_one(sandbox: SandboxFactory, project: Path) -> None:
    before = describe(project)
    box = sandbox(mounts=[Mount(source=str(project), target="/mnt/project", mode=MountMode.READ_ONLY)])
    result = box.exec("cat /mnt/project/README && echo x > /mnt/project/README || touch /mnt/project/new")
    assert (result.stdout, result.exit_code) == ("read me\n", 1)
    assert "Read-only file system" in result.stderr
    assert describe(project) == before


def test_a_read_write_one_changes_the_hosts_files_as_their_owner(sandbox: SandboxFactory, project: Path) -> None:
    box = sandbox(mounts=[Mount(source=str(project), mode=MountMode.READ_WRITE)])
    box.exec("echo changed > README; echo made > new", check=True)
    assert (project / "README").read_text() == "changed\n"
    assert (project / "new").stat().st_uid == project.stat().st_uid


@pytest.mark.root
@pytest.mark.parametrize("owner", [TREE_ID_BASE, TREE_ID_BASE + 33, TREE_ID_BASE + 1000])
def test_a_directory_that_a_sandbox_has_made_can_be_written_by_user_and_root(
    sandbox: SandboxFactory, project: Path, owner: int
) -> None:
    os.chown(project, owner, owner)
    box = sandbox(mounts=[Mount(source=str(project), mode=MountMode.READ_WRITE)])
    box.exec("mkdir mine", check=True)
    box.exec("mkdir theirs", user="root", check=True)
    assert box.exec("stat -c %u mine theirs", check=True).stdout == "1000\n0\n"
    assert (project / "mine").stat().st_uid == owner


def test_several_at_once_one_inside_the_other(sandbox: SandboxFactory, project: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (other / "file").write_text("other\n")
    mounts = [
        Mount(source=str(other), target="/workspace/src/vendor", mode=MountMode.READ_ONLY),
        Mount(source=str(project)),
    ]
    box = sandbox(mounts=mounts)
    assert box.exec("cat src/vendor/file src/deep/code.py", check=True).stdout == "other\nprint('hello')\n"
    assert not (project / "src" / "vendor").exists()


def test_a_relative_source_is_of_the_callers_directory(
    sandbox: SandboxFactory, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(project.parent)
    assert sandbox(mounts=[Mount(source="project")]).exec("cat README", check=True).stdout == "read me\n"


@pytest.mark.parametrize("mode", OVERLAID)
def test_a_socket_in_it_leads_to_no_process_of_the_host(
    sandbox: SandboxFactory, project: Path, mode: MountMode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(project)  # a socket's address holds 107 bytes
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("door")
        os.chmod("door", 0o777)
        server.listen()
        server.setblocking(False)
        box = sandbox(mounts=[Mount(source=".", mode=mode)])
        code = "import socket; socket.socket(socket.AF_UNIX).connect('door')"
        assert "ConnectionRefusedError" in box.exec(["python3", "-c", code]).stderr
        with pytest.raises(BlockingIOError):
            server.accept()


@pytest.mark.parametrize("mode", OVERLAID)
def test_a_fifo_in_it_leads_to_no_process_of_the_host(sandbox: SandboxFactory, project: Path, mode: MountMode) -> None:
    os.mkfifo(project / "pipe", 0o666)
    reader = os.open(project / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    try:
        box = sandbox(mounts=[Mount(source=str(project), mode=mode)])
        code = "import os; os.write(os.open('pipe', os.O_RDWR | os.O_NONBLOCK), b'out')"
        box.exec(["python3", "-c", code])
        assert os.read(reader, 10) == b""
    finally:
        os.close(reader)


def test_a_link_in_it_is_followed_inside(sandbox: SandboxFactory, project: Path, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("of the host")
    (project / "out").symlink_to(tmp_path / "secret")
    (project / "up").symlink_to("../secret")
    result = sandbox(mounts=[Mount(source=str(project))]).exec("cat out up")
    assert result.stdout == ""


def test_set_user_id_and_devices_mean_nothing(sandbox: SandboxFactory, project: Path) -> None:
    for mode in MountMode:
        box = sandbox(mounts=[Mount(source=str(project), mode=mode)])
        (line,) = (row for row in box.exec("cat /proc/self/mounts").stdout.splitlines() if " /workspace " in row)
        assert {"nosuid", "nodev"} <= set(line.split()[3].split(","))


@pytest.mark.root
def test_a_private_file_of_somebody_else_stays_private(sandbox: SandboxFactory, project: Path) -> None:
    (project / "theirs").write_text("secret")
    os.chown(project / "theirs", 4321, 4321)
    (project / "theirs").chmod(0o600)
    for mode in MountMode:
        box = sandbox(mounts=[Mount(source=str(project), mode=mode)])
        for user in (None, "root"):
            assert box.exec("cat theirs; chmod 644 theirs; chown 0 theirs", user=user).stdout == ""
    assert stat.S_IMODE((project / "theirs").stat().st_mode) == 0o600


def test_what_is_refused_says_why(sandbox: SandboxFactory, project: Path) -> None:
    for mount, why in (
        (Mount(source=str(project / "nothing")), "no such directory"),
        (Mount(source=str(project / "README")), "no such directory"),
        (Mount(source="/"), "contains the state directory"),
        (Mount(source="/proc"), "file system of the kernel's"),
        (Mount(source=str(project), target="/proc/sys"), "/proc is paddock's"),
        (Mount(source=str(project), target="/.vessel"), "/.vessel is paddock's"),
        (Mount(source=str(project), target="/.frozen/below"), "/.frozen is paddock's"),
        (Mount(source=str(project), target="relative"), "absolute path"),
        (Mount(source=str(project), target="/a/../etc"), "absolute path"),
        (Mount(source=str(project), target="/"), "absolute path"),
    ):
        with pytest.raises(InvalidArgumentError, match=why):
            sandbox(mounts=[mount])


def test_the_state_directory_is_not_shown(sandbox: SandboxFactory, shared_state: Path, project: Path) -> None:
    (project / "way").symlink_to(shared_state)
    with pytest.raises(InvalidArgumentError, match="state directory"):
        sandbox(mounts=[Mount(source=str(project / "way"))])


def test_an_unused_mount_leaves_nothing(sandbox: SandboxFactory, project: Path) -> None:
    box = sandbox(mounts=[Mount(source=str(project))])
    box.kill()
    assert str(project) not in Path("/proc/self/mountinfo").read_text()
    project.rename(project.with_name("renamed"))
