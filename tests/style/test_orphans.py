"""A process that a test leaves behind is found, however it has detached itself."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests import orphans

DAEMON = """
import os, sys, time
if os.fork(): os._exit(0)
os.setsid()
sys.stdin.readline()
"""


def test_a_daemon_that_has_left_its_parent_is_found(tmp_path: Path) -> None:
    def found() -> list[int]:
        pids = orphans.descendants(int(os.environ[orphans.SUPERVISOR]))
        return [pid for pid in pids if str(tmp_path) in orphans.command_line(pid)]

    with subprocess.Popen([sys.executable, "-c", DAEMON, tmp_path], stdin=subprocess.PIPE) as parent:
        assert parent.wait() == 0
        assert len(found()) == 1
    assert orphans.wait_until(lambda: not found())
