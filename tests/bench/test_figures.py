"""What benchmarks say about their timings, and the reference that they are measured against."""

from __future__ import annotations

import random
import shutil
import statistics
from pathlib import Path

import pytest

from bench.figures import ratio, summarize
from bench.reference import Reference


def noisy(seed: int, centre: float, *, rounds: int = 20, block: int = 10) -> list[list[float]]:
    dice = random.Random(seed)
    return [[centre * dice.lognormvariate(0, 0.2) for _ in range(block)] for _ in range(rounds)]


def test_a_summary_is_in_the_unit_that_came_in() -> None:
    summary = summarize([float(n) for n in range(1, 101)])
    assert (summary.count, summary.best) == (100, 1.0)
    assert summary.median == pytest.approx(50.5)
    assert (summary.p25, summary.p75, summary.p95, summary.p99) == (26.0, 76.0, 96.0, 100.0)


def test_a_ratio_is_that_of_the_medians_and_its_spread_holds_it() -> None:
    slow, quick = noisy(1, 2.0), noisy(2, 1.0)
    found = ratio(slow, quick)
    assert found.low < found.value < found.high
    assert found.low < 2.0 < found.high
    assert found.differs


def test_a_series_does_not_differ_from_another_of_its_kind() -> None:
    wrong = sum(ratio(noisy(seed, 1.0), noisy(seed + 1, 1.0), resamples=200).differs for seed in range(0, 80, 2))
    assert wrong <= 8  # of 40: one in twenty is what an interval of 95 % promises


def test_what_both_suffer_in_a_round_cancels_out() -> None:
    weather = [1.0, 9.0, 2.0, 30.0, 1.5] * 4
    storm = [[w, w * 1.1] for w in weather]
    found = ratio([[2 * value for value in block] for block in storm], storm)
    assert (found.low, found.value, found.high) == (2.0, 2.0, 2.0)


def test_another_statistic_than_the_median_can_be_asked_for() -> None:
    assert ratio([[1.0, 1.0, 10.0]], [[1.0, 1.0, 1.0]]).value == 1.0
    assert ratio([[1.0, 1.0, 10.0]], [[1.0, 1.0, 1.0]], statistic=statistics.fmean).value == 4.0


def test_rounds_that_do_not_match_are_refused() -> None:
    for one, other in (([[1.0]], []), ([], [])):
        with pytest.raises(ValueError, match=r"zip|rounds"):
            ratio(one, other)


def test_the_reference_runs_and_leaves_nothing(tmp_path: Path) -> None:
    if shutil.which("bwrap") is None:
        pytest.skip("bwrap is missing: apt-get install bubblewrap")
    reference = Reference(tmp_path)
    reference.cycle()
    reference.cycle()
    assert str(tmp_path) not in Path("/proc/self/mountinfo").read_text()
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["rootfs"]
