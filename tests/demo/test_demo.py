"""The demonstration shows what it says: the repository is broken, claims are measured, the model decides nothing."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from demo import report
from demo import run as demonstration
from demo.host import Host
from demo.model import TURNS, ScriptedModel
from tests.conftest import SandboxFactory


def test_the_repository_fails_its_own_suite(tmp_path: Path) -> None:
    repository = shutil.copytree(demonstration.SOURCE, tmp_path / "repository")
    suite = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    run = subprocess.run(suite, cwd=repository, capture_output=True, text=True)
    assert run.returncode == 1, run.stdout
    assert "5 failed, 13 passed" in run.stdout


@pytest.mark.slow  # every time, `make demo`
def test_every_claim_of_the_demonstration_holds(sandbox: SandboxFactory) -> None:
    sandbox()  # skips with the reason where no sandbox can be had
    run = demonstration.demonstrate(quiet=True)
    assert [claim for claim in run.claims if not claim.held] == []
    assert {turn.name for turn in TURNS} <= {step.name for step in run.steps} | set(run.not_tried)


def test_a_model_that_says_nothing_repairs_nothing(sandbox: SandboxFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    sandbox()
    monkeypatch.setattr("demo.model.TURNS", ())
    run = demonstration.demonstrate(quiet=True)
    assert not run.ok
    assert [claim.text for claim in run.claims if not claim.held] == ["the suite is green"]


def test_harm_to_the_host_is_noticed(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("1")
    with Host(tmp_path) as host:
        assert host.harm() is None
        assert host.leaked(f"xx{host.canary.read_text()}xx") == "a file of the host"
        (tmp_path / "a.py").write_text("2")
        assert host.harm() == f"{tmp_path} was changed"
        host.canary.unlink()
        assert host.harm() == "the canary file was touched"


def test_the_model_hears_every_observation() -> None:
    model = ScriptedModel()
    while model.next("observed"):
        pass
    assert model.heard == ["observed"] * (len(TURNS) + 1)


def test_a_claim_is_said_when_it_is_known_and_without_values_of_python(capsys: pytest.CaptureFixture[str]) -> None:
    run = demonstration.Run()
    run.say(demonstration.INTRODUCTION)
    run.claim("fork bomb: stopped by the processes limit", True, "refused 124 times")
    introduction, _, said = capsys.readouterr().err.partition("\n\n")
    assert "your machine is as it was" in introduction
    assert said == "held    fork bomb: stopped by the processes limit  refused 124 times\n"
    report.show(run, as_json=False)
    assert capsys.readouterr().out.count(said) == 1
