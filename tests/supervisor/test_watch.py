"""Limits that are kept by looking, where the kernel keeps none: what is used is seen, ended, and called by its name."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from paddock.linux import proc
from paddock.model import Limits
from paddock.supervisor import _watch
from tests.orphans import wait_until

if TYPE_CHECKING:
    from paddock import Sandbox

MIB = 1 << 20
HOG = "import sys\nx = bytearray(b'x') * (int(sys.argv[1]) << 20)\ninput()"
Factory = Callable[..., "Sandbox"]


def watched(sandbox: Factory, **limits: int) -> Sandbox:
    box = sandbox(level="jail", limits=Limits(**limits))
    if box.usage().cpu_seconds is not None:
        pytest.skip("control groups are delegated here: the kernel limits memory itself")
    return box


def ended_by(box: Sandbox) -> str | None:
    return box.refresh().limit


@pytest.mark.user
def test_processes_that_use_too_much_memory_together_lose_the_largest(sandbox: Factory) -> None:
    box = watched(sandbox, memory_mib=400)
    hog = ("python3", "-I", "-S", "-c", HOG)
    with box.start((*hog, "150"), stdin=True) as small, box.start((*hog, "300"), stdin=True) as large:
        status = large.wait()
        assert (status.limit, status.signal) == ("memory", signal.SIGKILL), status
        small.stdin.write(b"go on\n")
        assert small.wait().exit_code == 0
    assert box.exec("echo alive").stdout == "alive\n"


@pytest.mark.user
def test_a_sandbox_with_little_memory_starts(sandbox: Factory) -> None:
    assert watched(sandbox, memory_mib=4).exec("echo ok").stdout == "ok\n"


@pytest.mark.user
def test_a_tree_that_grows_beyond_its_disk_limit_ends_the_sandbox(sandbox: Factory) -> None:
    box = sandbox(level="jail", limits=Limits(disk_mib=64))
    box.start("for n in $(seq 20); do head -c 4M /dev/zero > /workspace/$n; done; sleep 600", background=True)
    assert wait_until(lambda: ended_by(box) == "disk", seconds=60), box.refresh()


@pytest.mark.user
def test_a_tree_of_too_many_files_ends_the_sandbox(sandbox: Factory) -> None:
    box = sandbox(level="jail", limits=Limits(inodes=2000))
    box.start("mkdir /workspace/d; cd /workspace/d; seq 3000 | xargs touch; sleep 600", background=True)
    assert wait_until(lambda: ended_by(box) == "inodes", seconds=60), box.refresh()


def test_every_process_of_a_family_is_found_and_what_it_uses() -> None:
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        ballast = bytearray(b"x") * (30 * MIB)
        grandchild = os.fork()
        if grandchild:
            os.write(writer, b"%d\n" % grandchild)
        signal.pause()
        os._exit(len(ballast) & 1)
    try:
        grandchild = int(os.read(reader, 100))
        assert proc.descendants(child) == [grandchild]
        coarse, _ = _watch.measure_memory([child, grandchild], limit=1 << 40)
        exact, parts = _watch.measure_memory([child, grandchild], limit=0)
        assert coarse >= 60 * MIB, "what both have counts twice as long as it does not matter"
        assert 30 * MIB <= exact < coarse
        assert [part.pid for part in parts] == [child, grandchild]
        assert proc.start_time(child) == parts[0].start
        os.kill(grandchild, signal.SIGKILL)
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(reader)
        os.close(writer)


def test_a_tree_is_measured_by_what_it_takes_each_file_once(tmp_path: Path) -> None:
    (tmp_path / "a/b").mkdir(parents=True)
    (tmp_path / "a/b/file").write_bytes(b"x" * MIB)
    (tmp_path / "a/again").hardlink_to(tmp_path / "a/b/file")
    (tmp_path / "out").symlink_to("/")
    root = os.open(tmp_path, os.O_RDONLY)
    try:
        *_, (size, count) = _watch.measure_tree(root)
    finally:
        os.close(root)
    assert MIB <= size < 1.1 * MIB
    assert count == 5


def test_a_tree_too_deep_for_a_path_is_told(tmp_path: Path) -> None:
    (tmp_path / "top").mkdir()
    place = os.open(tmp_path / "top", os.O_RDONLY)
    for _ in range(20):
        os.mkdir("d" * 250, dir_fd=place)
        below = os.open("d" * 250, os.O_RDONLY, dir_fd=place)
        os.close(place)
        place = below
    os.close(place)
    root = os.open(tmp_path, os.O_RDONLY)
    try:
        with pytest.raises(_watch.TooDeep):
            list(_watch.measure_tree(root))
    finally:
        os.close(root)
