"""Sections become tables, JSON and pictures, and say what was not measured."""

from __future__ import annotations

import io
import json
from pathlib import Path
from xml.etree import ElementTree

from rich.console import Console

from bench import plot
from bench.contest import Record
from bench.report import Section, file_system, show
from bench.worker import TOTAL


def record(name: str, seconds: float) -> Record:
    samples = [[{TOTAL: seconds, "create": seconds / 2}] for _ in range(4)]
    return Record(name, samples=samples, cpu=[{"caller": seconds, "inside": 0.0} for _ in range(4)])


def section() -> Section:
    one, other, absent = record("paddock", 0.01), record("<other> [red]", 0.02), Record("gone", failure="no engine")
    made = Section("cycle", "a title")
    for each in (one, other, absent):
        made.add(each)
    made.add_cpu(one)
    made.compare(one, [other, absent])
    return made


def test_a_section_has_wholes_parts_ratios_and_what_failed() -> None:
    made = section()
    assert [(row.label, row.part) for row in made.rows] == [
        ("paddock", False),
        ("create", True),
        ("<other> [red]", False),
        ("create", True),
        ("paddock, processor time", False),
        ("caller", True),  # nobody inside used any
    ]
    assert made.ratios["paddock / <other> [red]"].value == 0.5
    assert len(made.ratios) == 1
    assert made.notes == ["gone: not measured: no engine"]


def test_one_that_broke_off_has_its_row_and_the_reason() -> None:
    broken = record("late", 0.01)
    broken.failure = "no more"
    made = Section("cycle", "a title")
    made.add(broken)
    made.compare(record("paddock", 0.02), [broken])
    assert len(made.rows) == 2
    assert made.notes == ["late: stopped after 4 rounds: no more"]


def test_the_table_shows_medians_in_milliseconds() -> None:
    out = io.StringIO()
    show(section(), Console(file=out, width=120))
    assert "10.00" in out.getvalue()
    assert "not measured: no engine" in out.getvalue()


def test_the_data_is_json_with_every_value() -> None:
    data = json.loads(json.dumps(section().data()))
    assert data["rows"][0]["values"] == [10.0] * 4
    assert data["rows"][0]["summary"]["median"] == 10.0
    assert data["ratios"]["paddock / <other> [red]"]["value"] == 0.5


def test_the_plot_is_svg_with_a_bar_for_each_whole(tmp_path: Path) -> None:
    root = ElementTree.parse(plot.write(section(), tmp_path)).getroot()
    space = "{http://www.w3.org/2000/svg}"
    bars = [float(rect.get("width", "0")) for rect in root.iter(f"{space}rect")][1:]
    texts = [text.text for text in root.iter(f"{space}text")]
    assert len(bars) == 3
    assert bars[0] < bars[1]
    assert "<other> [red]" in texts


def test_a_plot_of_nothing_is_still_a_picture() -> None:
    ElementTree.fromstring(plot.draw("t", "ms", []))


def test_the_file_system_of_a_path_is_known() -> None:
    assert file_system(Path("/proc/self")) == "proc"
