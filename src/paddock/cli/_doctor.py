"""`paddock doctor`: what this machine can do, and the command that mends what it cannot."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING

from . import _render
from ._progress import progress
from ._values import add_json
from ._verbs import WrongUsage

if TYPE_CHECKING:
    from paddock.model import Check, LevelReport


def add(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Shows what this machine can do, and how to fix what it can't. It makes a sandbox of each level that is there"
        " and runs `true` in it. Exit code 1 if that fails at the default level, or at one that you name."
    )
    parser.add_argument(
        "--storage",
        action="store_true",
        help="look through the pool: what is on the disk against what is recorded; exit code 1 if something is wrong",
    )
    parser.add_argument("--scrub", action="store_true", help="with --storage: read all of it, however long it takes")
    parser.add_argument("--repair", action="store_true", help="with --storage: delete what is half made first")
    parser.add_argument(
        "--level",
        action="append",
        default=[],
        choices=("microvm", "gvisor", "jail", "container"),
        help="run this level only; may be given several times",
    )
    add_json(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    from paddock.client import default_transport
    from paddock.model import Diagnose, Level

    if options.storage:
        return _storage(options)
    if options.scrub or options.repair:
        raise WrongUsage("--scrub and --repair are about the pool", "paddock doctor --storage")
    with progress("looking at this machine"):
        diagnosis = default_transport().perform(Diagnose(run=True, levels=tuple(map(Level, options.level))))
    if options.json:
        _render.document(diagnosis)
    else:
        _levels([one for one in diagnosis.levels if one.level in (options.level or [one.level])])
        _table([check for check in diagnosis.checks if check.area != "process"])  # that level is for tests
        _render.line(f"\nstate: {_render.escape(diagnosis.state_dir)}")
        _render.line(f"config: {_render.escape(diagnosis.config_file)}")
        for key, value in diagnosis.config.items():
            _render.line(_render.escape(f"  {key} = {value}"))
    usable = {one.level for one in diagnosis.levels if one.status != "missing"}
    return 0 if usable.issuperset(options.level or [diagnosis.default_level]) else 1


def _storage(options: argparse.Namespace) -> int:
    from paddock.client import default_transport
    from paddock.model import CheckStorage

    checks = default_transport().perform(CheckStorage(scrub=options.scrub or None, repair=options.repair))
    if options.json:
        _render.document(checks)
    else:
        _table(checks)
    return 1 if any(check.status == "missing" for check in checks) else 0


def _levels(levels: Sequence[LevelReport]) -> None:
    if levels:
        rows = [(one.status, one.level, _took(one.seconds), one.detail, one.fix or "") for one in levels]
        _render.checklist(("STATUS", "LEVEL", "TOOK", "DETAIL"), rows)
        _render.line("")


def _took(seconds: float | None) -> str:
    return "" if seconds is None else f"{seconds:.1f} s"


def _table(checks: Sequence[Check]) -> None:
    rows = [(c.status, c.area, c.name, c.detail, c.fix or "") for c in checks]
    _render.checklist(("STATUS", "AREA", "CHECK", "DETAIL"), rows)
