"""Contenders take turns, are charged for what they use, and fail by themselves."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

import pytest

from bench.contest import Contender, Record, contest
from bench.cycle import PADDOCK
from bench.worker import TOTAL
from tests.conftest import SandboxFactory
from tools.ab import compared


def contender(name: str, subject: str, **arguments: object) -> Contender:
    return Contender(name, f"tests.bench.subjects:{subject}", arguments)


def test_all_have_their_turn_in_every_round_in_alternating_order(tmp_path: Path) -> None:
    file = tmp_path / "turns"
    scribes = [contender(letter, "Scribe", file=str(file), letter=letter) for letter in "AB"]
    records = contest(scribes, rounds=3, block=2, warm_up=1)
    assert file.read_text()[:-2] == "BBAAAABBBBAAAABB"
    assert sorted(file.read_text()[-2:]) == ["a", "b"]  # both were closed
    assert records["A"].rounds() == [[1.0, 1.0]] * 3  # the warm-up does not count
    assert records["A"].rounds("part") == [[0.5, 0.5]] * 3
    assert records["A"].parts == (TOTAL, "part")


@pytest.mark.parametrize(
    ("where", "reason"), [("start", "no engine here"), ("once", "out of breath"), ("exit", "the last words")]
)
def test_one_that_fails_says_why_and_holds_up_nobody(tmp_path: Path, where: str, reason: str) -> None:
    scribe = contender("A", "Scribe", file=str(tmp_path / "turns"), letter="A")
    records = contest([contender("X", "Dying", where=where), scribe], rounds=2, block=1)
    assert reason in (records["X"].failure or "")
    assert (len(records["A"].samples), records["A"].failure) == (2, None)


def test_processor_time_is_counted_per_repetition() -> None:
    record = contest([contender("A", "Burner", seconds=0.02)], rounds=2, block=3, warm_up=0)["A"]
    used = [sum(block) / len(block) for block in record.rounds()]  # as it has seen it itself
    assert all(own <= value < 2 * own for own, (value,) in zip(used, record.cpu_rounds(), strict=True))
    assert record.cpu_rounds("children") == [[0.0], [0.0]]


def test_what_a_sandbox_uses_is_counted_and_nothing_is_left(
    sandbox: SandboxFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    sandbox()  # skips with the reason where no sandbox can be had
    make: Any = tempfile.mkdtemp
    made: list[str] = []

    def noted(*arguments: Any, **more: Any) -> str:
        """Other tests' benchmarks have theirs in the same place at the same time."""
        made.append(make(*arguments, **more))
        return made[-1]

    monkeypatch.setattr(tempfile, "mkdtemp", noted)
    record = contest([PADDOCK], rounds=1, block=5, warm_up=0)["paddock"]
    assert record.failure is None
    assert len(record.seconds("create")) == 5
    assert all(record.cpu[0][part] > 0 for part in ("caller", "supervisor"))
    if record.exact:
        assert record.cpu[0]["inside"] > 0
    assert [os.path.exists(place) for place in made if place.startswith("/var/tmp/pb-")] == [False]


def record(name: str, seconds: float, cpu: float) -> Record:
    wobble = (0.99, 1.0, 1.01)
    return Record(
        name,
        samples=[[{TOTAL: seconds * w, "create": seconds / 2} for w in wobble] for _ in range(5)],
        cpu=[{"caller": 3 * cpu, "inside": 0.0} for _ in range(5)],
    )


def test_two_revisions_are_compared_b_over_a() -> None:
    ratios = compared(record("A", 1.0, 2.0), record("B", 2.0, 1.0))
    assert ratios[TOTAL].value == pytest.approx(2.0)
    assert ratios["create"].value == pytest.approx(2.0)
    assert ratios["processor time"].value == pytest.approx(0.5)
    assert ratios["- caller"].value == pytest.approx(0.5)
    assert "- inside" not in ratios  # there is nothing to divide by


def test_the_paddock_that_is_measured_is_the_one_that_was_named(tmp_path: Path) -> None:
    package = tmp_path / "paddock"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (tmp_path / "another.py").write_text(
        "import paddock\nclass Subject:\n    def once(self): return {'total': 1.0}\n    def close(self): ...\n"
    )
    record = contest([Contender("A", "another:Subject", paths=(tmp_path,))], rounds=1, block=1)["A"]
    assert record.source == str(package / "__init__.py")
