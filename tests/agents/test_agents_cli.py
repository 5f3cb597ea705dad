"""`paddock try` and `paddock agent` on real sandboxes: the best diff on stdout, the rest beside it."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from paddock import PaddockError, Sandbox
from tests.agents.endpoint import Answer, calls_openai, says_openai, serving
from tests.agents.scripts import BAD, GOOD, MISFIT, project

Paddock = Callable[..., "subprocess.CompletedProcess[str]"]
PYTEST = "python3 -m pytest -q -p no:cacheprovider"
FIX = [
    {"calls": [{"name": "bash", "arguments": {"command": "echo $SOME_API_KEY; cat task.py"}}], "tokens": [100, 10]},
    {"calls": [{"name": "edit_file", "arguments": {"path": "task.py", "old": "a - b", "new": "a + b"}}]},
    {"text": "fixed; my key is key-of-nobody", "tokens": [300, 5]},
]


@pytest.fixture
def paddock(shared_state: Path, tmp_path: Path) -> Paddock:
    def run(*arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
        argv = [sys.executable, "-m", "paddock", *arguments]
        environment = os.environ | environ
        return subprocess.run(argv, capture_output=True, text=True, cwd=tmp_path, env=environment, timeout=100)

    return run


@pytest.fixture
def repo(tmp_path: Path) -> Path:
    for name, patch in (("bad", BAD), ("good", GOOD), ("misfit", MISFIT)):
        (tmp_path / f"{name}.patch").write_text(patch)
    (tmp_path / "script.json").write_text(json.dumps([[{"text": "I give up"}], FIX]))
    return project(tmp_path / "repo")


def test_the_best_patch_comes_out_the_table_beside_it_and_nothing_was_changed(paddock: Paddock, repo: Path) -> None:
    before = {path.name: path.read_bytes() for path in repo.iterdir()}
    run = paddock("try", "--repo", "repo", "--test", PYTEST, "bad.patch", "good.patch", "misfit.patch")
    assert run.returncode == 0, run.stderr
    rows = run.stderr.splitlines()
    assert any("* good.patch" in row and "passed, 2 of 2" in row and "+1 -1, files: 1" in row for row in rows)
    assert any("bad.patch" in row and "exit 1, 1 of 2" in row for row in rows)
    assert any("misfit.patch" in row and "does not apply" in row for row in rows)
    assert "good.patch is the only one of 3 that passes" in run.stderr
    assert {path.name: path.read_bytes() for path in repo.iterdir()} == before
    subprocess.run(["git", "apply", "-"], input=run.stdout, text=True, cwd=repo, check=True)
    assert "a + b" in (repo / "task.py").read_text()
    assert not Sandbox.list()


def test_tests_that_are_not_there_and_a_model_that_fails_are_said(paddock: Paddock, repo: Path) -> None:
    run = paddock("try", "--repo", "repo", "--test", "pytset -q", "good.patch")
    assert run.returncode == 1
    assert "its tests said: " in run.stderr
    assert "pytset" in run.stderr.splitlines()[-1]
    away = {"OPENAI_API_KEY": "key-of-nobody", "OPENAI_BASE_URL": "http://127.0.0.1:1/v1"}
    run = paddock("agent", "mend", "--repo", "repo", "--test", PYTEST, "--model", "openai:none", **away)
    assert run.returncode == 1
    assert "model" in run.stderr.splitlines()[1]
    assert "paddock: attempt 1: " in run.stderr
    assert "onnection" in run.stderr
    assert "key-of-nobody" not in run.stderr


def test_none_that_passes_is_exit_code_1_and_json_holds_everything(paddock: Paddock, repo: Path) -> None:
    command = f"test -e warm && {PYTEST}"
    run = paddock("try", "--repo", "repo", "--setup", "touch warm", "--test", command, "--json", "bad.patch")
    assert run.returncode == 1, run.stderr
    found = json.loads(run.stdout)
    assert (found["best"], found["why"]) == (None, "none of 1 passes; bad.patch came nearest: exit 1, 1 of 2")
    (attempt,) = found["attempts"]
    assert attempt["verdict"]["counts"] == {"passed": 1, "failed": 1, "skipped": 0}
    assert attempt["size"] == {"files": 1, "added": 1, "removed": 1}
    assert "+    return a * b" in attempt["diff"]
    assert "assert 2 == 3" in attempt["verdict"]["said"]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--repo", "missing", "--test", "true", "good.patch"), "is not a directory"),
        (("--repo", "repo", "--test", "true", "missing.patch"), "cannot be read: No such file"),
        (("--repo", "repo", "--test", " ", "good.patch"), "no command to test with"),
        (("--repo", "repo", "--test", "true", "--setup", "echo broken >&2; exit 7", "good.patch"), "broken"),
    ],
)
def test_what_cannot_be_tried_is_said_before_it_is(
    paddock: Paddock, repo: Path, arguments: tuple[str, ...], says: str
) -> None:
    run = paddock("try", *arguments)
    assert run.returncode == 125
    assert says in run.stderr
    assert run.stdout == ""


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_control_c_ends_everything(paddock: Paddock, repo: Path, number: signal.Signals, code: int) -> None:
    argv = [sys.executable, "-m", "paddock", "try", "--test", "echo > /workspace/here; exec sleep 4327", "good.patch"]
    (repo / "good.patch").write_text(GOOD)
    with subprocess.Popen(argv, cwd=repo, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            while not any(_sleeps(box) for box in Sandbox.list()):
                assert process.poll() is None, process.stderr
            process.send_signal(number)
            assert process.wait(60) == code
        finally:
            process.kill()
    assert not Sandbox.list()


def _sleeps(box: Sandbox) -> bool:
    with contextlib.suppress(PaddockError):  # it may be on its way in or out
        return any("sleep" in " ".join(info.argv) for info in box.processes())
    return False


def test_agents_work_in_forks_within_a_budget_and_leave_a_trace_without_secrets(
    paddock: Paddock, repo: Path, tmp_path: Path
) -> None:
    arguments = ["agent", "make the tests pass", "--repo", "repo", "--test", PYTEST, "--best-of", "2"]
    limits = ["--model", "script:script.json", "--price", "1:10", "--max-usd", "0.5", "--trace", "t.jsonl"]
    run = paddock(*arguments, *limits, SOME_API_KEY="key-of-nobody")
    assert run.returncode == 0, run.stderr
    assert "+    return a + b" in run.stdout
    assert "attempt 2 is the only one of 2 that passes" in run.stderr
    assert "$0.0006, 415 tokens, 3 steps, done" in run.stderr
    assert "a - b" in (repo / "task.py").read_text()
    for name in ("t.jsonl", "t.jsonl.md"):
        text = (tmp_path / name).read_text()
        assert "make the tests pass" in text
        assert "passed, 2 of 2" in text
        assert "key-of-nobody" not in text
    assert not Sandbox.list()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--model", "nobody:x"), "is not a model"),
        (("--model", "script:missing.json"), "cannot be read"),
        (("--model", "script:good.patch"), "is not a script"),
        (("--model", "script:script.json", "--max-usd", "1"), "nobody said what"),
        (("--model", "openai:x"), "OPENAI_API_KEY"),
    ],
)
def test_what_cannot_be_asked_is_said_before_a_sandbox_is_made(
    paddock: Paddock, repo: Path, arguments: tuple[str, ...], says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    run = paddock("agent", "x", "--test", "true", *arguments)
    assert run.returncode == 125
    assert says in run.stderr


def test_a_model_is_asked_through_its_endpoint_and_the_key_stays_outside(paddock: Paddock, repo: Path) -> None:
    fix = calls_openai("bash", {"command": "env; sed -i 's/a - b/a + b/' task.py"})
    with serving(Answer(fix), Answer(says_openai("done"))) as endpoint:
        environ = {"OPENAI_API_KEY": "sk-very-secret", "OPENAI_BASE_URL": f"{endpoint.url}/v1"}
        run = paddock(
            "agent", "fix", "--repo", "repo", "--test", PYTEST, "--model", "openai:m-1", "--trace", "t", **environ
        )
    assert run.returncode == 0, run.stderr
    assert "198 tokens, 2 steps, done" in run.stderr
    assert "Warning" not in run.stderr
    first, second = (body["messages"] for _, _, body in endpoint.requests)
    assert first[1]["content"] == f"fix\n\nThe tests are run by: {PYTEST}"
    assert "HOME=/home/user" in second[-1]["content"]
    assert "sk-very-secret" not in str(second)


def test_nothing_of_it_is_loaded_for_help() -> None:
    script = "import sys; from paddock.cli import _verbs; _verbs.parser(); print('paddock.agents' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], capture_output=True, text=True).stdout == "False\n"
