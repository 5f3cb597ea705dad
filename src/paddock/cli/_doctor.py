"""This machine: `paddock doctor` shows its capabilities, with a command for each missing one.

`paddock gc` frees space.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from paddock import model

from . import _render
from ._answer import answer, perform
from ._progress import progress
from ._usage import argument, usage
from ._verbs import WrongUsage


@usage(
    argument(
        "--storage",
        action="store_true",
        help="look through the pool: what is on the disk against what is recorded; exit code 1 if something is wrong",
    ),
    argument("--scrub", action="store_true", help="with --storage: read all of it, however long it takes"),
    argument("--repair", action="store_true", help="with --storage: delete what is half made first"),
    argument(
        "--level",
        action="append",
        default=[],
        choices=("microvm", "gvisor", "jail", "container"),
        help="run this level only; may be given several times",
    ),
)
def verb_doctor(options: argparse.Namespace) -> int:
    """Show the capabilities of this machine, and a fix for each missing one.

    It makes a sandbox of each available level and runs `true` in it. Exit code 1 if that fails at the default level, or
    at one that you name.
    """
    if options.storage:
        return _storage(options)
    if options.scrub or options.repair:
        raise WrongUsage("--scrub and --repair are about the pool", "paddock doctor --storage")
    with progress("looking at this machine"):
        diagnosis = perform(model.Diagnose(run=True, levels=tuple(map(model.Level, options.level))))
    if options.json:
        _render.document(diagnosis)
    else:
        _verdict(diagnosis)
        _levels([one for one in diagnosis.levels if one.level in (options.level or [one.level])])
        _table([check for check in diagnosis.checks if check.area != "process"])  # that level is for tests
        _render.line()
        _render.line(f"state: {diagnosis.state_dir}")
        _render.line(f"config: {diagnosis.config_file}")
        for key, value in diagnosis.config.items():
            _render.line(f"  {key} = {value}")
    usable = {one.level for one in diagnosis.levels if one.status != "missing"}
    return 0 if usable.issuperset(options.level or [diagnosis.default_level]) else 1


def _verdict(found: model.Diagnosis) -> None:
    usable = [one.level for one in found.levels if one.status != "missing"]
    ready = found.default_level in usable
    _render.plain(
        f"{'Ready' if ready else 'Not ready'}: the default level {found.default_level} {'works' if ready else 'fails'};"
        f" {len(usable)} of {len(found.levels)} levels are available."
    )
    _render.line()


def _storage(options: argparse.Namespace) -> int:
    checks = perform(model.CheckStorage(scrub=options.scrub or None, repair=options.repair))
    answer(options, checks, lambda: _table(checks))
    return 1 if any(check.status == "missing" for check in checks) else 0


def _levels(levels: Sequence[model.LevelReport]) -> None:
    if levels:
        took = ["" if one.seconds is None else f"{one.seconds:.1f} s" for one in levels]
        rows = [
            (one.status, one.level, time, one.detail, one.fix or "") for one, time in zip(levels, took, strict=True)
        ]
        _render.checklist(("STATUS", "LEVEL", "TOOK", "DETAIL"), rows)
        _render.line()


def _table(checks: Sequence[model.Check]) -> None:
    rows = [(c.status, c.area, c.name, c.detail, c.fix or "") for c in checks]
    _render.checklist(("STATUS", "AREA", "CHECK", "DETAIL"), rows)


@usage(argument("--dry-run", action="store_true", help="only say what would go, and why the rest stays"))
def verb_gc(options: argparse.Namespace) -> int:
    """Delete unneeded files, and, while the pool is too full, files that paddock can fetch again.

    It keeps all that a living sandbox, a snapshot or a workspace needs.
    """
    report = perform(model.CollectGarbage(dry_run=options.dry_run))
    if options.json:
        _render.document(report)
        return 0
    gone = "would go" if report.dry_run else "gone"
    rows = [
        (
            one.kind,
            one.what,
            _render.size(one.bytes),
            gone if one.kept_because is None else "kept",
            one.kept_because or one.why,
        )
        for one in report.items
    ]
    if rows:
        _render.table(("KIND", "WHAT", "SIZE", "", "WHY"), rows)
    before, after = report.before, report.after
    _render.line(
        f"{sum(one.kept_because is None for one in report.items)} {gone}; the pool is {after.fill:.1%} full"
        f" ({before.fill:.1%} before), {_render.size(after.available_bytes)} are available"
    )
    return 0
