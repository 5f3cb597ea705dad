"""`paddock audit`: watched, taken out, and checked elsewhere; each call a process of its own."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.fixture
def state_dir(module_state: Path) -> Path:
    """All calls of this module look at one state directory."""
    return module_state


@pytest.fixture
def environment(state_dir: Path) -> dict[str, str]:
    return {**os.environ, "PADDOCK_STATE_DIR": str(state_dir)}


class Shell:
    def __init__(self, environment: dict[str, str], directory: Path) -> None:
        self._environment, self._directory = environment, directory

    def __call__(self, *arguments: str, code: int = 0) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "paddock", *arguments],
            env=self._environment,
            cwd=self._directory,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == code, done
        return done.stdout

    def begin(self, *arguments: str) -> subprocess.Popen[str]:
        argv = [sys.executable, "-m", "paddock", *arguments]
        return subprocess.Popen(argv, env=self._environment, cwd=self._directory, stdout=subprocess.PIPE, text=True)


@pytest.fixture
def paddock(environment: dict[str, str], tmp_path: Path) -> Shell:
    return Shell(environment, tmp_path)


def test_what_was_taken_out_is_checked_where_there_is_nothing_else(
    paddock: Shell, tmp_path: Path, state_dir: Path
) -> None:
    paddock("ls")
    for _ in range(2):
        paddock("audit", "export", "-o", "out.jsonl", "--cursor-file", "cursor")
        paddock("ls")
    (tmp_path / "key.pub").write_text(paddock("audit", "key"))
    shutil.copytree(state_dir / "audit", tmp_path / "copy")
    shutil.copy(tmp_path / "out.jsonl", tmp_path / "torn.jsonl")
    with (tmp_path / "out.jsonl").open("ab") as file:
        file.write(b'{"segment":"of a run that was killed')
    paddock("audit", "export", "-o", "out.jsonl", "--cursor-file", "cursor")

    elsewhere = Shell({**os.environ, "PADDOCK_STATE_DIR": str(tmp_path / "nothing")}, tmp_path)
    for name in ("out.jsonl", "copy"):
        report = json.loads(elsewhere("audit", "verify", name, "--public-key", "key.pub", "--json"))
        assert (report["ok"], report["part"], report["heads"] > 0) == (True, False, True), report
    assert "signed: " in elsewhere("audit", "verify", "out.jsonl")
    assert not (tmp_path / "nothing").exists()
    elsewhere("audit", "verify", "missing", code=125)
    elsewhere("audit", "verify", "out.jsonl", "--public-key", "cursor", code=125)

    lines = (tmp_path / "torn.jsonl").read_bytes().splitlines(keepends=True)
    (tmp_path / "torn.jsonl").write_bytes(b"".join([*lines[:2], *lines[3:]]))
    told = elsewhere("audit", "verify", "torn.jsonl", code=1)
    assert "first bad: record 1 of " in told


def test_an_export_does_not_write_over_what_is_there(paddock: Shell, tmp_path: Path) -> None:
    (tmp_path / "there").write_text("mine")
    paddock("audit", "export", "-o", "there", code=125)
    assert (tmp_path / "there").read_text() == "mine"


def test_other_tools_are_told_in_their_words(paddock: Shell) -> None:
    paddock("ls")
    events = [json.loads(line) for line in paddock("audit", "export", "--format", "ocsf").splitlines()]
    assert "decision:sandbox.list" in [event["metadata"]["event_code"] for event in events]
    assert {event["metadata"]["version"] for event in events} == {"1.4.0"}


def test_tail_shows_the_last_records_and_follows_what_others_do(paddock: Shell) -> None:
    paddock("ls")
    last = paddock("audit", "tail", "-n", "2", "--kind", "sandbox.list")
    assert [line.split()[2] for line in last.splitlines()] == ["sandbox.list"] * 2
    watching = paddock.begin("audit", "tail", "-f", "-n", "1", "--kind", "sandbox", "--json")
    assert watching.stdout is not None
    seen = [json.loads(watching.stdout.readline())["record"]["kind"]]  # the last one: it watches
    paddock("ls")
    seen += [json.loads(watching.stdout.readline())["record"]["kind"] for _ in range(2)]
    watching.send_signal(signal.SIGINT)
    watching.communicate()
    assert seen == ["outcome", "decision", "outcome"]


def test_a_kind_of_which_there_is_no_record_is_said_to_have_none(paddock: Shell, environment: dict[str, str]) -> None:
    paddock("ls")
    argv = [sys.executable, "-m", "paddock", "audit", "tail", "--kind"]
    for kind, said in (("sandbox.list", ""), ("nosuch", "no record of kind 'nosuch'")):
        done = subprocess.run([*argv, kind], env=environment, capture_output=True, text=True, check=True)
        assert (bool(done.stdout), said in done.stderr) == (not said, True)


def test_approvals_without_a_verb_are_listed(paddock: Shell) -> None:
    assert paddock("approvals") == ""
    assert json.loads(paddock("approvals", "--all", "--json")) == []
    assert json.loads(paddock("approvals", "ls", "--json")) == []
