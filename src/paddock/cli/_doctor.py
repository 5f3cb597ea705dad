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
        "What this machine can do, and how to mend what it cannot. Exit code 1 if the default level can't be used here."
    )
    parser.add_argument(
        "--storage",
        action="store_true",
        help="look through the pool: what is on the disk against what is recorded; exit code 1 if something is wrong",
    )
    parser.add_argument("--scrub", action="store_true", help="with --storage: read all of it, however long it takes")
    parser.add_argument("--repair", action="store_true", help="with --storage: delete what is half made first")
    add_json(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    from paddock._compose import connector
    from paddock.model import Diagnose

    if options.storage:
        return _storage(options)
    if options.scrub or options.repair:
        raise WrongUsage("--scrub and --repair are about the pool", "paddock doctor --storage")
    diagnosis = connector.connect().perform(Diagnose())
    if options.json:
        _render.document(diagnosis)
    else:
        _levels(diagnosis.levels)
        shown = {one.level for one in diagnosis.levels}
        _table([check for check in diagnosis.checks if check.area != "level" or check.name not in shown])
        _render.line(f"\nstate: {_render.escape(diagnosis.state_dir)}")
        _render.line(f"config: {_render.escape(diagnosis.config_file)}")
        for key, value in diagnosis.config.items():
            _render.line(_render.escape(f"  {key} = {value}"))
    return 0 if any(one.level == diagnosis.default_level and one.status != "missing" for one in diagnosis.levels) else 1


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
        rows = [(one.status, one.level, one.detail, one.fix or "") for one in levels]
        _render.table(("STATUS", "LEVEL", "DETAIL", "FIX"), rows, marks=[row[0] for row in rows])
        _render.line("")


def _table(checks: Sequence[Check]) -> None:
    rows = [(c.status, c.area, c.name, c.detail, c.fix or "") for c in checks]
    _render.table(("STATUS", "AREA", "CHECK", "DETAIL", "FIX"), rows, marks=[row[0] for row in rows])
