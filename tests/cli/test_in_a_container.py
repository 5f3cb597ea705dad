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
from paddock.linux.syscall_names import numbers
machine = os.uname().machine
refused = {numbers(machine)["sethostname"]: seccomp.fail_with(errno.EPERM)}
prctl.set_no_new_privileges()
seccomp.Filter(seccomp.compile(seccomp.AUDIT_ARCH[machine], refused, seccomp.ALLOW)).install()
"""

# What Docker's filter does to a process without CAP_SYS_ADMIN (moby/profiles/seccomp/default.json): clone3 is ENOSYS.
_WITHOUT_USER_NAMESPACES = """
import errno
from paddock.linux import caps, prctl, seccomp
from paddock.linux.syscall_names import numbers
machine = os.uname().machine
calls = numbers(machine)
no = seccomp.fail_with(errno.EPERM)
refused = {calls[name]: no for name in ("unshare", "setns", "mount", "move_mount", "open_tree", "fsopen")}
refused[calls["clone3"]] = seccomp.fail_with(errno.ENOSYS)
prctl.set_no_new_privileges()
seccomp.Filter(seccomp.compile(seccomp.AUDIT_ARCH[machine], refused, seccomp.ALLOW)).install()
"""

# Engines cover files and directories of /proc.
_WITH_A_COVERED_PROC = """
import subprocess
from paddock.linux import mounts, namespaces
namespaces.unshare(namespaces.NEWNS)
mounts.make_all_private()
subprocess.run(["mount", "--bind", "/dev/null", "/proc/interrupts"], check=True)
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
def test_root_without_cap_sys_admin_has_the_jails_of_an_ordinary_user(state_dir: Path) -> None:
    ran = paddock(
        state_dir, _WITHOUT_SYS_ADMIN, "run", "--mount", ".", "--", "sh", "-c", "id -un; echo x >made; ls made"
    )
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "user\nmade\n", "")
    told = paddock(state_dir, _WITHOUT_SYS_ADMIN, "doctor", "--level", "jail", "--json")
    assert told.returncode == 0
    (jail,) = [one for one in json.loads(told.stdout)["levels"] if one["level"] == "jail"]
    assert jail["status"] == "ok"
    fixes = {one["fix"] for one in json.loads(told.stdout)["checks"] if one["status"] == "weak"}
    assert "run the container with --privileged" in fixes
    assert not [fix for fix in fixes if "as root" in (fix or "") or "usermod" in (fix or "") or "_ids" in (fix or "")]


@pytest.mark.root
def test_a_home_on_overlayfs_as_a_container_has_it_holds_sandboxes(tmp_path: Path) -> None:
    home, layers = tmp_path / "home", [tmp_path / name for name in ("lower", "upper", "work")]
    for directory in (home, *layers):
        directory.mkdir()
    options = "lowerdir={},upperdir={},workdir={}".format(*layers)
    subprocess.run(["mount", "-t", "overlay", "overlay", "-o", options, home], check=True)
    try:
        ran = paddock(home / "state", _WITHOUT_SYS_ADMIN, "run", "--", "sh", "-c", "echo it >holds; cat holds")
        stopped = paddock(home / "state", _WITHOUT_SYS_ADMIN, "daemon", "stop")
        assert (ran.returncode, ran.stdout, ran.stderr) == (0, "it\n", "")
        assert stopped.returncode == 0
    finally:
        subprocess.run(["umount", "--lazy", home], check=True)  # a supervisor that lingers has it open


@pytest.mark.root
def test_where_the_engine_covers_parts_of_proc_the_flag_is_named(state_dir: Path) -> None:
    without = _WITH_A_COVERED_PROC + _WITHOUT_SYS_ADMIN
    ran = paddock(state_dir, without, "run", "--", "true")
    assert ran.returncode == 125
    assert "--security-opt systempaths=unconfined (Docker)" in ran.stderr
    told = paddock(state_dir, without, "doctor", "--json")
    assert told.returncode == 1
    (jail,) = [one for one in json.loads(told.stdout)["levels"] if one["level"] == "jail"]
    assert (jail["status"], "procMount: Unmasked" in jail["detail"]) == ("missing", True)


@pytest.mark.parametrize(
    "root", [pytest.param(True, marks=pytest.mark.root), pytest.param(False, marks=pytest.mark.user)]
)
def test_where_a_filter_forbids_user_namespaces_the_flag_is_named(state_dir: Path, root: bool) -> None:
    without = _WITHOUT_USER_NAMESPACES
    if root:
        without = _WITHOUT_SYS_ADMIN + without
    ran = paddock(state_dir, without, "run", "--", "true")
    assert ran.returncode == 125
    assert "--security-opt seccomp=unconfined" in ran.stderr
    assert "seccompProfile: {type: Unconfined}" in ran.stderr
    told = paddock(state_dir, without, "doctor", "--json")
    assert told.returncode == 1
    (jail,) = [one for one in json.loads(told.stdout)["levels"] if one["level"] == "jail"]
    assert jail["status"] == "missing"
    assert "seccomp=unconfined" in jail["detail"] + (jail["fix"] or "")


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
