"""docs/guarantees.md promises nothing whose proof isn't there."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tools import guarantees
from tools.guarantees import Guarantee

ROOT = Path(__file__).parent.parent.parent
ROWS = guarantees.load()


def test_the_page_is_fresh() -> None:
    run = subprocess.run([sys.executable, ROOT / "tools/guarantees.py", "--check"], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr


def test_no_id_is_there_twice() -> None:
    ids = [row.id for row in ROWS]
    assert len(ids) > 20
    assert len(ids) == len(set(ids))


def test_the_rows_of_the_page_before_are_all_gathered() -> None:
    assert len({old for row in ROWS for old in row.covers}) == 484


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.id)
def test_every_proof_is_there_and_runs_somewhere(row: Guarantee) -> None:
    assert row.proofs or row.cells[-1].startswith("pending"), f"{row.id}: neither a test, a benchmark nor `pending`"
    for proof in row.proofs:
        if proof.startswith("bench/"):
            assert (ROOT / proof).is_file(), f"{row.id}: {proof} doesn't exist"
        else:
            assert guarantees.tests_of(proof), f"{row.id}: no test that runs is named {proof}"


@pytest.mark.parametrize(
    ("source", "runs"),
    [
        ("def test_a(): ...", True),
        ("class TestA:\n    def test_a(self): ...", True),
        ("@pytest.mark.skipif(machine, reason='it has none')\ndef test_a(): ...", True),
        ("def test_a():\n    if machine:\n        pytest.skip('it has none')", True),
        ("@pytest.mark.skip(reason='later')\ndef test_a(): ...", False),
        ("@pytest.mark.xfail\ndef test_a(): ...", False),
        ("def test_a():\n    pytest.skip('later')", False),
        ("pytestmark = [pytest.mark.slow, pytest.mark.skip]\ndef test_a(): ...", False),
        ("@pytest.mark.skip\nclass TestA:\n    def test_a(self): ...", False),
        ("def helper(): ...", False),
        ("from tests.other import test_a", True),
        ("class TestA(Suite): ...", True),
        ("class TestA: ...", False),
    ],
)
def test_what_is_skipped_everywhere_is_no_proof(source: str, runs: bool, tmp_path: Path) -> None:
    file = tmp_path / "test_a.py"
    file.write_text(source)
    assert bool(guarantees.names(file)) is runs
