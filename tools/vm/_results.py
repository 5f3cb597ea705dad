"""Reading what the machine wrote."""

from __future__ import annotations

import sys
import xml.etree.ElementTree as ET
from collections.abc import Sequence
from pathlib import Path


def show(results: Path, modes: Sequence[str], *, tests: bool) -> int:
    """Print what did not pass, and one line per mode. 0 if all passed."""
    worst = 0
    for mode in modes:
        code = results / f"{mode}.code"
        status = code.read_text() if code.exists() else "not run"
        if status != "0":
            worst = 1
        summary = _summary(results / f"{mode}.xml") if tests else ""
        print(f"{mode}: exit code {status} {summary}", file=sys.stderr)
    return worst


def _summary(report: Path) -> str:
    if not report.exists():
        return "(no report)"
    suite = ET.parse(report).getroot()[0]
    for case in suite.iter("testcase"):
        for kind in ("failure", "error", "skipped"):
            if (found := case.find(kind)) is not None:
                print(f"  {kind}: {case.get('classname')}::{case.get('name')}: {found.get('message')}"[:300])
    counts = {name: int(suite.get(name, "0")) for name in ("tests", "failures", "errors", "skipped")}
    return ", ".join(f"{number} {name}" for name, number in counts.items())
