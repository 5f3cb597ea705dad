"""What an ordinary user's sandbox cannot enforce, `paddock doctor` lists, and nothing else may go untested there."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from paddock.backends import Capabilities
from paddock.backends.jail import _probe
from paddock.linux import subordinate_ids

HERE = Path(__file__).parent
NOTHING = Capabilities(isolation=True)


def test_what_attacks_are_excused_from_is_what_doctor_admits_to_an_ordinary_user() -> None:
    """Both ways: no attack is left out silently, and no line of doctor stands without an attack that shows it."""
    texts = [file.read_text() for file in HERE.glob("test_attack_*.py")]
    excused = {name for text in texts for name in re.findall(r'\bneeds\("(\w+)"\)', text)}
    admitted = {line.name for line in _probe.guarantees(NOTHING, root=False, cpus=False) if line.status == "weak"}
    # Of the tables that the kernel keeps by user, one sandbox has a quarter: it takes several, so no attack is excused.
    assert excused - {"activity"} == admitted - {"activity", "tables"}
    assert "activity" in excused


def test_every_line_that_is_weak_says_what_holds_instead() -> None:
    for line in _probe.guarantees(NOTHING, root=False, cpus=False):
        assert line.status == "weak"
        assert len(line.detail) > 10
        assert line.fix or line.name == "activity"


def test_root_on_a_whole_machine_has_every_guarantee() -> None:
    everything = Capabilities(isolation=True, enforced=frozenset(_probe.LIMITS))
    assert [line for line in _probe.guarantees(everything, root=True, cpus=True) if line.status != "ok"] == []


def test_doctor_prints_them(shared_state: Path) -> None:
    command = [sys.executable, "-m", "paddock", "doctor", "--level", "jail", "--json"]
    done = subprocess.run(command, env={**os.environ, "PADDOCK_STATE_DIR": str(shared_state)}, capture_output=True)
    printed = {check["name"]: check["status"] for check in json.loads(done.stdout)["checks"]}
    for line in _probe.guarantees(NOTHING, root=os.getuid() == 0, cpus=False):
        assert printed[line.name] in ("ok", "weak")


def test_no_attack_is_left_out_for_want_of_root_but_for_a_reason_of_the_test_itself() -> None:
    """What an attack needs on the host, not in the sandbox: a file of root's, the memory of a process, a resolver in
    the place of the machine's."""
    allowed = {
        "test_the_variables_of_one_sandbox_are_in_no_process_of_another",
        "test_a_file_that_only_root_of_the_host_may_read_is_not_read_in_the_shared_usr",
        "test_a_name_that_is_not_allowed_leaves_the_sandbox_in_no_question",
    }
    found: set[str] = set()
    for file in HERE.glob("test_attack_*.py"):
        found |= set(re.findall(r"@pytest\.mark\.root\n(?:@.*\n)*def (\w+)", file.read_text()))
    assert found <= allowed


@pytest.mark.parametrize(
    ("present", "first"),
    [
        ({"/sys/fs/cgroup/cgroup.controllers", "/run/systemd/system"}, "loginctl enable-linger "),
        (
            {"/sys/fs/cgroup/cgroup.controllers", "/run/systemd/system", f"/run/user/{os.getuid()}/systemd"},
            "paddock daemon stop; systemd-run --user --scope -p Delegate=yes paddock doctor",
        ),
        ({"/run/systemd/system"}, "ask root for control groups of your own (docs/howto/ordinary-user.md"),
        (set[str](), "ask root for control groups of your own (docs/howto/ordinary-user.md"),
    ],
)
def test_weak_limits_name_what_an_ordinary_user_can_do_before_root(
    monkeypatch: pytest.MonkeyPatch, present: set[str], first: str
) -> None:
    monkeypatch.setattr(subordinate_ids, "as_root", lambda: subordinate_ids.AS_ROOT)
    monkeypatch.setattr(os.path, "isdir", present.__contains__)
    monkeypatch.setattr(os.path, "exists", present.__contains__)
    fixes = {line.name: line.fix or "" for line in _probe.guarantees(NOTHING, root=False, cpus=False)}
    for name in ("memory", "processes", "cpus", "sockets"):
        assert fixes[name].startswith(first)
