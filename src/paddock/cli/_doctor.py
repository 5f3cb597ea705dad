"""`paddock doctor`: what this machine can do, and the command that mends what it cannot."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING

from . import _render
from ._values import add_json
from ._verbs import WrongUsage

if TYPE_CHECKING:
    from paddock.model import Check, LevelReport


def add(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "What this machine can do, and how to mend what it cannot. Exit code 1 if no level can be used here."
    )
    parser.add_argument(
        "--storage",
        action="store_true",
        help="look through the pool: what is on the disk against what is recorded; exit code 1 if something is wrong",
    )
    parser.add_argument("--scrub", action="store_true", help="with --storage: read all of it, however long it takes")
    parser.add_argument("--repair", action="store_true", help="with --storage: delete what is half made first")
    parser.add_argument(
        "--levels",
        action="store_true",
        help="first make sandboxes of each level: by what they take one is chosen where none is named",
    )
    add_json(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    from paddock._compose import connector
    from paddock.model import Diagnose, MeasureLevels

    if options.storage:
        return _storage(options)
    if options.scrub or options.repair:
        raise WrongUsage("--scrub and --repair are about the pool", "paddock doctor --storage")
    diagnosis = connector.connect().perform(MeasureLevels() if options.levels else Diagnose())
    if options.json:
        _render.document(diagnosis)
    else:
        _levels(diagnosis.levels)
        shown = {one.level for one in diagnosis.levels}
        _table([check for check in diagnosis.checks if check.area != "level" or check.name not in shown])
        _render.line(f"\nstate: {_render.escape(diagnosis.state_dir)}")
        _render.line(f"level unless another is asked for: {diagnosis.default_level or 'none can be used here'}")
        if diagnosis.default_because:
            _render.line(f"  {_render.escape(diagnosis.default_because)}")
    return 0 if diagnosis.default_level is not None else 1


def _storage(options: argparse.Namespace) -> int:
    from paddock._compose import connector
    from paddock.model import CheckStorage

    checks = connector.connect().perform(CheckStorage(scrub=options.scrub or None, repair=options.repair))
    if options.json:
        _render.document(checks)
    else:
        _table(checks)
    return 1 if any(check.status == "missing" for check in checks) else 0


def _levels(levels: Sequence[LevelReport]) -> None:
    if levels:
        rows = [(one.status, one.level, _took(one.create_ms), one.detail, one.fix or "") for one in levels]
        _render.table(("STATUS", "LEVEL", "CREATE", "DETAIL", "FIX"), rows, marks=[row[0] for row in rows])
        _render.line("")


def _took(milliseconds: float | None) -> str:
    return "" if milliseconds is None else f"{milliseconds:.0f} ms"


def _table(checks: Sequence[Check]) -> None:
    rows = [(c.status, c.area, c.name, c.detail, c.fix or "") for c in checks]
    _render.table(("STATUS", "AREA", "CHECK", "DETAIL", "FIX"), rows, marks=[row[0] for row in rows])
