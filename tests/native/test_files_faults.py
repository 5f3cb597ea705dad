"""The n-th system call of a file operation fails, for every n: a file is the old one or the new one, never between."""

from __future__ import annotations

import errno
import os
import signal
import socket
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from paddock.wire import WireError
from paddock.wire.guest import RemoveFlags
from tests.native.driver import Connection, Ended, GuestError, start
from tests.native.filing import Files
from tests.native.test_archives import hard, link, member, tar
from tests.native.test_guest_faults import ALLOCATION, PATIENCE_SECONDS, faulty

__all__ = ["faulty"]
STEP = 11
MOST_ALLOCATIONS = 12
MOST = 330
"""More calls than the agent and the longest of these operations make together."""


def write(files: Files, root: Path) -> None:
    try:
        files.write("a/file", b"new")
    finally:
        assert (root / "a/file").read_bytes() in (b"old", b"new")
        assert sorted(os.listdir(root / "a")) == ["b", "file"]


def copy(files: Files, root: Path) -> None:
    files.copy("a", "copy")
    assert (root / "copy/file").read_bytes() == b"old"
    assert (root / "copy/b/link").is_symlink()


def remove(files: Files, root: Path) -> None:
    files.remove("a", RemoveFlags.RECURSIVE)
    assert os.listdir(root) == []


def search(files: Files, root: Path) -> None:
    assert [match.line for match in files.grep("", "o.d")] in ([b"old"], [])
    files.find("")
    files.download("")


def upload(files: Files, root: Path) -> None:
    archive = tar(member("d/one", b"1"), hard("two", "d/one"), link("three", "two"))
    files.upload("u", archive)
    assert (root / "u/two").read_bytes() == b"1"


@pytest.mark.parametrize("error", [errno.ENOMEM, errno.EIO], ids=lambda number: errno.errorcode[number])
@pytest.mark.parametrize("act", [write, copy, remove, search, upload])
def test_any_call_of_a_file_operation_may_fail(
    faulty: Path, tmp_path: Path, act: Callable[[Files, Path], None], error: int
) -> None:
    for n in range(1 + error % STEP, MOST, STEP):
        strike(faulty, tmp_path / str(n), act, n, error)


@pytest.mark.parametrize("act", [write, copy, remove, search, upload])
def test_any_allocation_of_a_file_operation_may_fail(
    faulty: Path, tmp_path: Path, act: Callable[[Files, Path], None]
) -> None:
    for n in range(1, MOST_ALLOCATIONS):
        strike(faulty, tmp_path / str(n), act, n, ALLOCATION)


@pytest.mark.slow
@pytest.mark.parametrize("act", [write, copy, remove, search, upload])
def test_every_call_of_a_file_operation_may_fail(
    faulty: Path, tmp_path: Path, act: Callable[[Files, Path], None]
) -> None:
    for n in range(1, MOST):
        strike(faulty, tmp_path / str(n), act, n, errno.EACCES)


def strike(program: Path, root: Path, act: Callable[[Files, Path], None], n: int, error: int) -> None:
    (root / "a/b").mkdir(parents=True)
    (root / "a/file").write_bytes(b"old")
    (root / "a/b/link").symlink_to("/")
    ours, its = socket.socketpair()
    pid = start(program, [its.fileno()], argv=(f"guest {n} {error}",))
    its.close()
    try:
        host = Connection(ours)
        host.peer.settimeout(PATIENCE_SECONDS)
        act(Files(host, root), root)
    except (GuestError, WireError, Ended, BrokenPipeError, ConnectionResetError):
        pass  # it was refused, or the agent could not go on
    finally:
        ours.close()
        os.kill(pid, signal.SIGKILL)
        _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) in (0, 125, -signal.SIGKILL), f"call {n} brought the agent down"
    subprocess.run(["rm", "-rf", root], check=True)
