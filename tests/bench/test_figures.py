"""What benchmarks say about their timings, and the reference that they are measured against."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from bench.figures import ratio, summarize
from bench.reference import Reference


def test_a_summary_is_in_milliseconds() -> None:
    summary = summarize([n / 1000 for n in range(1, 101)])
    assert (summary.count, summary.best) == (100, 1.0)
    assert summary.median == pytest.approx(50.5)
    assert summary.p95 == pytest.approx(96.0)


def test_a_ratio_is_that_of_the_medians_and_its_spread_holds_it() -> None:
    slow, quick = [2.0, 2.2, 1.8, 2.1, 1.9] * 10, [1.0, 1.1, 0.9, 1.05, 0.95] * 10
    found = ratio(slow, quick)
    assert found.value == pytest.approx(2.0)
    assert found.low <= found.value <= found.high
    assert ratio(slow, slow).low == ratio(slow, slow).high == 1.0  # in pairs: what both suffer cancels out


def test_the_reference_runs_and_leaves_nothing(tmp_path: Path) -> None:
    if shutil.which("bwrap") is None:
        pytest.skip("bwrap is missing: apt-get install bubblewrap")
    reference = Reference(tmp_path)
    reference.cycle()
    reference.cycle()
    assert str(tmp_path) not in Path("/proc/self/mountinfo").read_text()
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["rootfs"]
