"""Results that documentation quotes: dated files with their machine, a page that says the same, and working links."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from bench import kept
from bench.report import machine
from tests.bench.test_report import section

PAGE = Path(__file__).parents[2] / "docs" / "benchmarks.md"


def test_a_result_has_its_date_its_machine_and_no_single_values(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kept, "HERE", tmp_path)
    path = kept.keep(machine(), "cycle", section().data(), took=2.4, load=1.5)
    found = json.loads(path.read_text())
    assert path.name == f"{found['date']}-cycle.json"
    assert found["machine"]["load_after"] == 1.5
    assert found["machine"]["kernel"]
    assert found["seconds"] == 2
    assert all("values" not in row for row in found["rows"])
    said = kept.page()
    assert "| · create | 5.00 | 5.00 to 5.00 | 5.00 | 4 |" in said
    assert f"[{found['date']}]({path.name})" in said
    assert "load_after" not in said


def test_the_page_shows_the_newest_result_of_each_benchmark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept, "HERE", tmp_path)
    newer = kept.keep(machine(), "cycle", section().data(), took=1, load=0)
    older = json.loads(newer.read_text()) | {"date": "2001-01-01"}
    (tmp_path / "2001-01-01-cycle.json").write_text(json.dumps(older))
    assert newer.name in kept.page()
    assert "2001" not in kept.page()


def test_the_page_says_what_its_files_say() -> None:
    assert kept.PAGE.read_text() == kept.page(), "python -m bench.kept"


def test_every_result_that_the_documentation_names_is_there() -> None:
    named = re.findall(r"\(\.\./bench/results/README\.md#([\w-]+)\)", PAGE.read_text())
    shown = re.findall(r"^## (.+)$", kept.PAGE.read_text(), re.MULTILINE)
    assert named
    assert set(named) <= {name.replace(" ", "-") for name in shown}
