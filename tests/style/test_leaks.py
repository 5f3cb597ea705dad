"""The look at what tests leave behind does see it."""

from __future__ import annotations

import hashlib
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


@pytest.mark.root
def test_a_cgroup_of_a_keeper_that_is_gone_is_found(tmp_path: Path) -> None:
    from paddock.linux import cgroups

    name = f"paddock_{hashlib.sha256(os.fsencode(tmp_path)).hexdigest()[:12]}"
    base = cgroups.Base.open(name)
    try:
        assert [line for line in leaks.cgroups_of(tmp_path) if name in line]
    finally:
        base.remove()
    assert leaks.remains(tmp_path) == []
