"""The programs in `examples/` run, and do what they say. (`step1.py`, `step2.py`: tests/client/test_client_real.py.)"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import SandboxFactory

EXAMPLES = Path(__file__).parent.parent.parent / "examples"


def output(name: str, sandbox: SandboxFactory) -> str:
    sandbox()  # skips with the reason where no sandbox can be had; its state directory is the example's
    run = subprocess.run([sys.executable, EXAMPLES / name], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    return run.stdout


@pytest.mark.pure
def test_no_example_is_left_out() -> None:
    shown = {
        "step1.py",
        "step2.py",
        "step3.py",
        "offline.py",
        "attempts.py",
        "repository.py",
        "task.py",
        "levels.py",
        "moving.py",
        "image.py",
    }
    assert {path.name for path in EXAMPLES.glob("*.py")} == shown


def test_of_several_attempts_the_right_one_is_kept(sandbox: SandboxFactory) -> None:
    said = output("attempts.py", sandbox)
    assert "kept: is right" in said


def test_one_program_gives_the_same_answer_at_each_level_or_the_reason_why_not(sandbox: SandboxFactory) -> None:
    said = output("levels.py", sandbox).splitlines()
    assert [line.partition(":")[0] for line in said] == ["container", "jail", "gvisor", "microvm"]
    assert "jail: 0 1 4 9 16 25 36 49 64 81 on Linux " in said[1]
    assert all("0 1 4 9 16 25 36 49 64 81 on Linux " in line or "is not available here" in line for line in said)


def test_an_image_of_one_program_is_enough_for_a_sandbox(sandbox: SandboxFactory) -> None:
    if shutil.which("busybox") is None:
        pytest.skip("busybox is not installed: apt-get install busybox-static")
    said = output("image.py", sandbox)
    assert "MADE=here" in said
    assert "'busybox'" in said


def test_a_task_goes_on_behind_one_wall_after_the_other(sandbox: SandboxFactory) -> None:
    said = output("moving.py", sandbox).splitlines()
    missing = [line.partition(":")[0] for line in said[:-1]]
    levels = ["jail", "gvisor", "container", "microvm"]
    assert said[-1].split() == ["been", "at:", *(level for level in levels if level not in missing)]


def test_a_directory_is_worked_on_without_being_changed(sandbox: SandboxFactory) -> None:
    said = output("repository.py", sandbox)
    assert "changed README.md" in said
    assert "gone obsolete.txt" in said
    assert "new report.txt" in said


def test_a_task_goes_on_after_its_first_sandbox(sandbox: SandboxFactory) -> None:
    said = output("task.py", sandbox)
    assert "begun on Monday\ndone on Tuesday\nsandboxes that had it: 2" in said


def test_five_fixes_are_tried_in_forks_of_one_warm_sandbox(sandbox: SandboxFactory) -> None:
    assert output("step3.py", sandbox) == "2/5 candidate fixes passed the test suite\n"


def test_a_second_sandbox_goes_on_where_the_first_has_ended(sandbox: SandboxFactory) -> None:
    said = output("task.py", sandbox)
    assert said.splitlines() == [
        "only here: 1 untracked file",
        "begun on Monday",
        "done on Tuesday",
        "sandboxes that had it: 2",
    ]
