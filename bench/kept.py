"""Results that documentation quotes: one dated file for each benchmark, and a page of all of them.

`make bench ARGS="--only cycle --keep"` writes the file of a section and the page. `python -m bench.kept` writes the
page alone, and `--check` fails if it isn't what the files say.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bench.report import figure

HERE = Path(__file__).parent / "results"
PAGE = HERE / "README.md"
_HEAD = """<!-- Generated from the files beside it by bench/kept.py. Do not edit: `python -m bench.kept`. -->

# Results of the benchmarks

Only ratios carry over to other machines.
[Benchmarks](../../docs/benchmarks.md) says what each one measures.
"""


def keep(machine: Mapping[str, Any], name: str, section: Mapping[str, Any], *, took: float, load: float) -> Path:
    """Write the summaries of one section, without its single values, and return the file."""
    rows = [{part: row[part] for part in ("label", "part", "summary")} for row in section["rows"]]
    date = time.strftime("%Y-%m-%d")
    about = {"date": date, "name": name, "seconds": round(took), "machine": {**machine, "load_after": load}}
    path = HERE / f"{date}-{name.replace(' ', '-')}.json"
    path.write_text(json.dumps({**about, **section, "rows": rows}, indent=1, sort_keys=True) + "\n")
    return path


def page() -> str:
    """Return the page: the newest file of each benchmark as a table."""
    newest: dict[str, tuple[Path, dict[str, Any]]] = {}
    for path in sorted(HERE.glob("*.json")):
        found = json.loads(path.read_text())
        newest[found["name"]] = (path, found)
    return "\n".join([_HEAD, *(_table(path, found) for path, found in newest.values())])


def _table(path: Path, found: Mapping[str, Any]) -> str:
    machine, unit = found["machine"], found["unit"]
    loads = f"load {machine['load']:.1f} before, {machine['load_after']:.1f} after"
    user = "root" if machine["uid"] == 0 else "an ordinary user"
    lines = [
        f"## {found['name']}",
        "",
        f"{found['title']}. [{found['date']}]({path.name}), {found['seconds']} s as {user}: {machine['processor']},"
        f" {machine['cpus']} processors, Linux {machine['kernel']}, Python {machine['python']}, {loads}.",
        "",
        f"| {unit} | median | quartiles | 95 % | n |",
        "|---|---|---|---|---|",
    ]
    for row in found["rows"]:
        s = row["summary"]
        label = ("· " if row["part"] else "") + row["label"]
        quartiles = f"{figure(s['p25'])} to {figure(s['p75'])}"
        lines.append(f"| {label} | {figure(s['median'])} | {quartiles} | {figure(s['p95'])} | {s['count']} |")
    ratios = [
        f"- {name}: **{value['value']:.2f}** ({value['low']:.2f} to {value['high']:.2f})"
        for name, value in found["ratios"].items()
    ]
    notes = [f"- {note}" for note in found["notes"]]
    return "\n".join([*lines, "", *ratios, *notes, *([""] if ratios or notes else [])])


def main() -> int:
    if "--check" not in sys.argv:
        PAGE.write_text(page())
        return 0
    if PAGE.read_text() == page():
        return 0
    print("bench/results/README.md isn't what its files say: python -m bench.kept")
    return 1


if __name__ == "__main__":
    raise SystemExit(main())
