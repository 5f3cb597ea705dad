"""`make bench` itself."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from bench.__main__ import BENCHMARKS
from tests.conftest import SandboxFactory

ROOT = Path(__file__).parent.parent.parent


def bench(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "bench", *arguments], cwd=ROOT, capture_output=True, text=True)


def test_every_benchmark_is_explained() -> None:
    page = (ROOT / "docs" / "benchmarks.md").read_text()
    assert [name for name in BENCHMARKS if f"`{name}`" not in page] == []
    assert [line.split()[0] for line in bench("--list").stdout.splitlines()] == list(BENCHMARKS)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", BENCHMARKS)
def test_every_benchmark_measures_something(name: str, sandbox: SandboxFactory, tmp_path: Path) -> None:
    sandbox()  # skips with the reason where no sandbox can be had
    run = bench("--only", name, "--rounds", "1", "--json", "--output", str(tmp_path))
    assert run.returncode == 0, run.stderr
    found = json.loads(run.stdout)["benchmarks"]
    assert found
    for section, data in found.items():
        assert data["rows"], section
        assert all(value >= 0 for row in data["rows"] for value in row["values"]), section
        assert (tmp_path / f"{section.replace(' ', '-')}.svg").exists()
        absent = (
            "LevelUnavailableError",
            "UnsupportedError",
        )  # a level that this machine has not got, or that has no forks
        notes = [note for note in data["notes"] if not any(word in note for word in absent)]
        assert not [note for note in notes if "not measured: " in note and "paddock" in note]
