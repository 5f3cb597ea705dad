"""A process that a test leaves behind is found, however it has detached itself."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests import orphans

DAEMON = """
import os, sys, time
if os.fork(): os._exit(0)
os.setsid()
sys.stdin.readline()
"""


def test_a_daemon_that_has_left_its_parent_is_found(request: pytest.FixtureRequest) -> None:
    if os.environ.get("PYTEST_XDIST_WORKER"):
        pytest.skip("under xdist the supervisor is the controller's parent, not ours")
    before = set(orphans.descendants(os.getppid()))
    with subprocess.Popen([sys.executable, "-c", DAEMON], stdin=subprocess.PIPE) as parent:
        assert parent.wait() == 0
        (stray,) = set(orphans.descendants(os.getppid())) - before
        assert "sys.stdin.readline" in orphans.command_line(stray)
    assert orphans.wait_until(lambda: stray not in orphans.descendants(os.getppid()))
