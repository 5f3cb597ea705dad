"""This machine: `paddock doctor` shows its capabilities, with a command for each missing one.

`paddock gc` frees space.
"""

from __future__ import annotations

import argparse
from collections.abc import Container, Sequence

from paddock import model

from . import _render
from ._answer import answer, ask, perform
from ._progress import progress
from ._usage import argument, usage
from ._verbs import WrongUsage


@usage(
    argument(
        "--storage",
        action="store_true",
        help="compare the pool on the disk with the records; exit code 1 if something is wrong",
    ),
    argument("--scrub", action="store_true", help="with --storage: read all data, however long that takes"),
    argument("--repair", action="store_true", help="with --storage: first delete what is half made"),
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

    Examples:
        paddock doctor
    """
    if options.storage:
        return _storage(options)
    if options.scrub or options.repair:
        raise WrongUsage("--scrub and --repair are about the pool", "paddock doctor --storage")
    with progress("looking at this machine"):
        diagnosis = perform(model.Diagnose(run=True, levels=tuple(map(model.Level, options.level))))
    answer(options, diagnosis, show=lambda: _tell(diagnosis, options.level))
    usable = {one.level for one in diagnosis.levels if one.status != "missing"}
    return 0 if usable.issuperset(options.level or [diagnosis.default_level]) else 1


def _tell(found: model.Diagnosis, levels: list[str]) -> None:
    usable = [one.level for one in found.levels if one.status != "missing"]
    asked = levels or [found.default_level]
    failed = [level for level in asked if level not in usable]
    named = failed or asked
    verb = ("fail" if failed else "work") + ("s" if len(named) == 1 else "")
    _render.plain(
        f"{'Not ready' if failed else 'Ready'}: {'' if levels else 'the default level '}{' and '.join(named)} {verb};"
        f" {len(usable)} of {len(found.levels)} levels are available."
    )
    _render.line()
    if shown := [one for one in found.levels if one.level in (levels or [one.level])]:
        took = ["" if one.seconds is None else f"{one.seconds:.1f} s" for one in shown]
        rows = [(one.status, one.level, time, one.detail, one.fix or "") for one, time in zip(shown, took, strict=True)]
        _render.checklist(("STATUS", "LEVEL", "TOOK", "DETAIL"), rows)
        _render.line()
    checks = [check for check in found.checks if check.area != "process"]  # that level is for tests
    fixes: dict[str, list[str]] = {}
    for check in checks:
        if check.fix:
            fixes.setdefault(check.fix, []).append(check.name)
    shared = {fix: names for fix, names in fixes.items() if len(names) > 1}
    _table(checks, below=shared)
    _render.line()
    for fix, names in shared.items():
        _render.line(f"fix of {', '.join(dict.fromkeys(names))}:")
        _render.line(f"  {fix}")
    if shared:
        _render.line()
    _render.line(f"state: {found.state_dir}")
    _render.line(f"config: {found.config_file}")
    _render.lines(f"  {key} = {value}" for key, value in found.config.items())


def _storage(options: argparse.Namespace) -> int:
    checks = ask(model.CheckStorage, options, scrub=options.scrub or None)
    answer(options, checks, show=lambda: _table(checks))
    return 1 if any(check.status == "missing" for check in checks) else 0


def _table(checks: Sequence[model.Check], *, below: Container[str | None] = ()) -> None:
    """Print checks, each with its fix, except for fixes that stand below the table."""
    rows = [(c.status, c.area, c.name, c.detail, "" if c.fix in below else c.fix or "") for c in checks]
    _render.checklist(("STATUS", "AREA", "CHECK", "DETAIL"), rows)


@usage(argument("--dry-run", action="store_true", help="only say what would go, and why the rest stays"))
def verb_gc(options: argparse.Namespace) -> int:
    """Delete unneeded files, and, while the pool is too full, files that paddock can fetch again.

    It keeps all that a living sandbox, a snapshot or a workspace needs.

    Examples:
        paddock gc --dry-run
    """
    report = ask(model.CollectGarbage, options)
    return answer(options, report, show=lambda: _tell_garbage(report))


def _tell_garbage(report: model.GarbageReport) -> None:
    gone = "would go" if report.dry_run else "gone"
    rows: list[tuple[str, ...]] = []
    for one in report.items:
        end = (gone, one.why) if one.kept_because is None else ("kept", one.kept_because)
        rows.append((one.kind, one.what, _render.size(one.bytes), *end))
    if rows:
        _render.table(("KIND", "WHAT", "SIZE", "", "WHY"), rows)
    before, after = report.before, report.after
    _render.line(
        f"{sum(one.kept_because is None for one in report.items)} {gone}; the pool is {after.fill:.1%} full"
        f" ({before.fill:.1%} before), {_render.size(after.available_bytes)} are available"
    )
