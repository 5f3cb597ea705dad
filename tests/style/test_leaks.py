"""The look at what tests leave behind does see it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests import leaks

DAEMON = """
import os, sys, time
if os.fork(): os._exit(0)
os.setsid()
sys.stdin.readline()
"""


def test_a_daemon_that_has_left_its_parent_is_found(request: pytest.FixtureRequest) -> None:
    if os.environ.get("PYTEST_XDIST_WORKER"):
        pytest.skip("under xdist the supervisor is the controller's parent, not ours")
    before = set(leaks.descendants(os.getppid()))
    with subprocess.Popen([sys.executable, "-c", DAEMON], stdin=subprocess.PIPE) as parent:
        assert parent.wait() == 0
        (stray,) = set(leaks.descendants(os.getppid())) - before
        assert "sys.stdin.readline" in leaks.command_line(stray)
    assert leaks.wait_until(lambda: stray not in leaks.descendants(os.getppid()))


def test_a_process_in_the_state_directory_is_found(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, cwd=tmp_path) as process:
        assert [line for line in leaks.holders(tmp_path) if f"process {process.pid} " in line]
        process.communicate(b"\n")
    assert leaks.remains(tmp_path) == []


def test_ids_are_read_from_the_records(tmp_path: Path) -> None:
    (tmp_path / "audit").mkdir()
    (tmp_path / "audit" / "0001").write_text('{"sandbox":"sb_0123456789abcdef"}')
    assert leaks.sandbox_ids(tmp_path) == {"sb_0123456789abcdef"}
