"""The command line where a container has taken something away: `doctor` and `run` say the same, and what to do."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

_WITHOUT_SYS_ADMIN = """
from paddock.linux import caps
caps.drop_bounding(*(number for number in range(64) if number != caps.SYS_ADMIN))
"""
_WITHOUT_SETHOSTNAME = """
import errno
from paddock.linux import prctl, seccomp
from paddock.linux._syscall_names import numbers
machine = os.uname().machine
refused = {numbers(machine)["sethostname"]: seccomp.fail_with(errno.EPERM)}
prctl.set_no_new_privileges()
seccomp.install(seccomp.compile(seccomp.AUDIT_ARCH[machine], refused, seccomp.ALLOW))
"""


def paddock(state_dir: Path, without: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    script = f"import os, sys\n{without}os.execv(sys.executable, [sys.executable, '-m', 'paddock', *sys.argv[1:]])"
    return subprocess.run(
        [sys.executable, "-c", script, *arguments],
        env={**os.environ, "PADDOCK_STATE_DIR": str(state_dir)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.mark.root
def test_root_without_cap_sys_admin_is_told_the_cause_and_two_ways_out(state_dir: Path) -> None:
    cause = "this process is root but may not make namespaces (no CAP_SYS_ADMIN): probably a container"
    way_out = "run the container with --privileged, or run paddock in it as an ordinary user"
    ran = paddock(state_dir, _WITHOUT_SYS_ADMIN, "run", "--", "true")
    assert (ran.returncode, ran.stderr) == (125, f"paddock: {cause}\n  try: {way_out}\n")
    told = paddock(state_dir, _WITHOUT_SYS_ADMIN, "doctor", "--json")
    assert told.returncode == 1
    report = json.loads(told.stdout)
    (jail,) = [one for one in report["levels"] if one["level"] == "jail"]
    (pool,) = [one for one in report["checks"] if one["name"] == "pool"]
    for row in (jail, pool):
        assert (row["status"], row["detail"], row["fix"]) == ("missing", cause, way_out)


@pytest.mark.user
def test_where_sethostname_is_refused_a_sandbox_without_a_name_runs_and_doctor_says_so(state_dir: Path) -> None:
    ran = paddock(state_dir, _WITHOUT_SETHOSTNAME, "run", "--", "true")
    assert (ran.returncode, ran.stderr) == (0, "")
    named = paddock(state_dir, _WITHOUT_SETHOSTNAME, "create", "--name", "box")
    assert "sethostname box" in named.stderr
    told = paddock(state_dir, _WITHOUT_SETHOSTNAME, "doctor", "--level", "jail", "--json")
    assert told.returncode == 0
    (line,) = [one for one in json.loads(told.stdout)["checks"] if one["name"] == "hostname"]
    assert line["status"] == "weak"
