"""The detector of leaks finds what was left, and nothing of the neighbours."""

from __future__ import annotations

import os
import secrets
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from paddock.linux import mounts
from paddock.linux.descriptors import closing
from tests.conformance.leaks import Snapshot, wait_until_clean

SLEEPER = [sys.executable, "-c", "import time; print(flush=True); time.sleep(600)"]


def _runs(child: subprocess.Popen[bytes]) -> None:
    """Until then its arguments may not be there yet: Popen returns while the kernel still makes the new program."""
    assert child.stdout is not None
    child.stdout.readline()


def test_nothing_is_left_when_nothing_happened(tmp_path: Path) -> None:
    before = Snapshot.take(tmp_path)
    assert before.difference(Snapshot.take(tmp_path)) == {}
    wait_until_clean(before, tmp_path, seconds=0)


def test_a_file_and_a_descriptor_are_found(tmp_path: Path) -> None:
    before = Snapshot.take(tmp_path)
    with open(tmp_path / "left", "w"):
        left = before.difference(Snapshot.take(tmp_path))
    assert left["files"] == {"left"}
    assert [text.partition(" -> ")[2] for text in left["descriptors"]] == [str(tmp_path / "left")]


@pytest.mark.root
def test_a_descriptor_is_the_same_when_its_file_system_and_its_file_go(tmp_path: Path) -> None:
    """The pool of a supervisor that leaves becomes `/`. A fixture of the session may hold it while another test
    looks."""
    place, path = tmp_path / "pool", tmp_path / "file"
    place.mkdir()
    with open(path, "w"), closing(mounts.fs_mount("tmpfs")) as pool:
        with closing(os.open(place, os.O_PATH)) as target:
            mounts.move_mount(pool, target)
        try:
            before = Snapshot.take(tmp_path)
            assert os.readlink(f"/proc/self/fd/{pool}") == str(place)
        finally:
            mounts.umount(os.fsencode(place), detach=True)
        path.unlink()
        assert os.readlink(f"/proc/self/fd/{pool}") == "/"
        assert before.difference(Snapshot.take(tmp_path)) == {}


def test_a_descriptor_that_takes_the_number_of_another_is_found(tmp_path: Path) -> None:
    path = tmp_path / "other"
    with open(tmp_path / "one", "w") as one, path.open("w") as other:
        before = Snapshot.take(tmp_path)
        os.dup2(other.fileno(), one.fileno(), inheritable=False)
        assert before.difference(Snapshot.take(tmp_path)) == {"descriptors": {f"{one.fileno()} -> {path}"}}


def test_a_process_is_found_by_its_working_directory_and_with_its_descendants(tmp_path: Path) -> None:
    before = Snapshot.take(tmp_path)
    program = (
        "import subprocess, sys; p = subprocess.Popen(['sleep', '600'], cwd='/'); print(flush=True); input(); p.kill()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program], cwd=tmp_path, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        assert child.stdout is not None
        child.stdout.readline()
        left = before.difference(Snapshot.take(tmp_path))
        child.communicate(b"\n")
    assert len(left["processes"]) == 2
    wait_until_clean(before, tmp_path)


def test_a_process_is_found_by_a_marker_among_its_arguments(tmp_path: Path) -> None:
    marker = secrets.token_hex(8)
    before = Snapshot.take(tmp_path, marker=marker)
    with subprocess.Popen([*SLEEPER, marker], cwd="/", stdout=subprocess.PIPE) as child:
        _runs(child)
        left = before.difference(Snapshot.take(tmp_path, marker=marker))
        child.kill()
    assert marker in "".join(left["processes"])


def test_a_process_is_found_by_a_socket_that_it_holds(tmp_path: Path) -> None:
    before = Snapshot.take(tmp_path)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "sock"))
        server.listen()
        with subprocess.Popen(SLEEPER, cwd="/", pass_fds=[server.fileno()], stdout=subprocess.PIPE) as child:
            _runs(child)
            left = before.difference(Snapshot.take(tmp_path))
            child.kill()
    assert "sleep" in "".join(left["processes"])


def test_a_neighbour_is_not_found(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    before = Snapshot.take(tmp_path / "mine")
    with subprocess.Popen(["sleep", "600"], cwd=tmp_path) as child:
        left = before.difference(Snapshot.take(tmp_path / "mine"))
        child.kill()
    assert left == {} or set(left) == {"descriptors"}


def test_what_is_left_is_said_in_words(tmp_path: Path) -> None:
    before = Snapshot.take(tmp_path)
    (tmp_path / "left").touch()
    with pytest.raises(AssertionError, match="files: left"):
        wait_until_clean(before, tmp_path, seconds=0)


@pytest.mark.root
def test_a_mount_and_a_namespace_are_found(tmp_path: Path) -> None:
    if os.getuid() != 0:
        pytest.skip("needs uid 0")
    before = Snapshot.take(tmp_path)
    script = 'mount -t tmpfs none "$1" && echo && read _'
    with subprocess.Popen(
        ["unshare", "--mount", "sh", "-c", script, "sh", str(tmp_path)],
        cwd=tmp_path,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as child:
        assert child.stdout is not None
        child.stdout.readline()
        left = before.difference(Snapshot.take(tmp_path))
        child.communicate(b"\n")
    assert {"processes", "mounts", "namespaces"} <= set(left)
    wait_until_clean(before, tmp_path)


@pytest.mark.root
def test_a_control_group_is_found_by_the_id_of_its_sandbox(tmp_path: Path) -> None:
    base = _own_pids_group()
    if os.getuid() != 0 or base is None:
        pytest.skip("needs uid 0 and a writable control group")
    name = f"sb_{secrets.token_hex(8)}"
    before = Snapshot.take(tmp_path, sandboxes=[name])
    (base / name).mkdir()
    try:
        left = before.difference(Snapshot.take(tmp_path, sandboxes=[name]))
    finally:
        (base / name).rmdir()
    assert left == {"cgroups": frozenset({str(base / name)})}


def _own_pids_group() -> Path | None:
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        for mount in ("/sys/fs/cgroup/pids", "/sys/fs/cgroup"):
            base = Path(mount + path)
            if controllers in ("pids", "") and (base / "cgroup.procs").exists() and os.access(base, os.W_OK):
                return base
    return None
