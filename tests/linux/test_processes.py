from __future__ import annotations

import os
import subprocess
import sys

from paddock.linux.processes import below
from tests.orphans import wait_until

FAMILY = """
import ctypes, os, sys, time
ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER: as pid 1 of a namespace
ctypes.CDLL(None).prctl(15, b") R 1 1 1\\n(x", 0, 0, 0)  # PR_SET_NAME
if os.fork() == 0:
    if os.fork() == 0:
        os.setsid()
        print("ready", flush=True)
        time.sleep(60)
    os._exit(0)  # its child is an orphan now
time.sleep(60)
"""


def test_an_orphan_in_a_session_of_its_own_is_found_and_no_name_deceives() -> None:
    with subprocess.Popen([sys.executable, "-c", FAMILY, "argument"], stdout=subprocess.PIPE) as child:
        try:
            assert child.stdout
            assert child.stdout.readline() == b"ready\n"
            assert wait_until(lambda: sorted(one.state for one in below(child.pid)) == ["S", "S", "Z"])
            first, *others = below(child.pid)
            assert [one.inner_pid for one in others] == sorted(one.inner_pid for one in others)
            assert first.pid == child.pid
            assert first.name == b") R 1 1 1\n(x"
            assert first.argv[0] == os.fsencode(sys.executable)
            assert first.argv[-1] == b"argument"
            assert (first.parent, first.uid, first.threads, first.filtered) == (os.getpid(), os.getuid(), 1, False)
            assert {one.parent for one in others} == {child.pid}
        finally:
            for one in below(child.pid)[::-1]:
                os.kill(one.pid, 9)
    assert below(child.pid) == ()
