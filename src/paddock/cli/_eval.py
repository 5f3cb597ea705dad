"""Tests of paddock's promises on this machine: `paddock eval`, and costs of the levels: `paddock bench`."""

from __future__ import annotations

import argparse
from pathlib import Path

from paddock import client

from . import _render
from ._answer import listing
from ._usage import Verbs, argument, usage
from ._values import output

LEAKED = 1
_TEMPLATE = argument("--template", default="host", metavar="NAME", help="default: host")
_MARKS = {"stopped": "ok", "not tried": "weak"}


@usage(
    argument("--scenario", action="append", default=[], metavar="NAME", help="this one only; may be given again"),
    argument("--policy", metavar="FILE", help="what would leak under your own? (default: paddock's)"),
    _TEMPLATE,
    argument("--level", metavar="LEVEL", help="isolation; default: that of any sandbox"),
    argument(
        "-o", "--output", type=output, metavar="FILE", help="a report with all records: Markdown, or JSON by its name"
    ),
    argument("--list", action="store_true", help="the scenarios there are"),
)
def _injection(options: argparse.Namespace) -> int:
    """Play scenarios of prompt injection in real sandboxes.

    An agent obeys all texts in poisoned repositories. The outside network is simulated, and the secrets are fake.
    Nothing leaves this machine, under any policy. Exit code 0 if nothing leaked and the honest twin of each attack
    worked, 1 if not.

    Examples:
        paddock eval injection --policy p.yaml
    """
    from paddock.eval import HEADINGS, as_json, choose, evaluate, rows, summary, write

    if options.list:
        return _list(options)
    choose(options.scenario)
    report = evaluate(
        options.scenario,
        policy=None if options.policy is None else Path(options.policy),
        template=options.template,
        level=options.level,
        on_outcome=lambda one: None if options.json else _render.note(f"{one.scenario}: {one.verdict}"),
    )
    if options.output is not None:
        write(report, Path(options.output))
    if options.json:
        _render.plain(as_json(report).decode())
    else:
        marks = [_MARKS.get(one.verdict, "missing") for one in report.outcomes]
        _render.table(HEADINGS, rows(report), marks=marks)
        _render.line(summary(report))
        _render.note(f"the records: PADDOCK_STATE_DIR={report.state_dir} paddock audit ls")
    return 0 if report.ok else LEAKED


def _list(options: argparse.Namespace) -> int:
    from paddock.eval import catalogue

    facts = [{"name": one.name, "poisoned": one.poisoned, "attempt": one.attempt} for one in catalogue()]
    return listing(options, facts, "SCENARIO, POISONED, WHAT IT TRIES", lambda one: tuple(one.values()))


@usage(
    argument("--levels", action="store_true", help="compare levels (there is nothing else to compare yet)"),
    argument(
        "--level",
        action="append",
        default=[],
        metavar="LEVEL",
        help="this one only; may be given again; `process` shows what gets through without isolation",
    ),
    argument("--rounds", type=int, metavar="N", help="sandboxes of each level (default: 5)"),
    _TEMPLATE,
    argument("-o", "--output", type=output, metavar="FILE", help="a report, by its name: .md or .json"),
)
def verb_bench(options: argparse.Namespace) -> int:
    """Make sandboxes of each level in turns, and measure them.

    It shows the time of each step, the cost of work inside relative to outside, and which of several harmless attacks
    by root inside succeed. It takes minutes with emulated machines. It changes no sandbox's level.

    Examples:
        paddock bench --levels
    """
    from paddock.eval import levels

    file = None if options.output is None else Path(options.output)
    if file is not None:
        levels.check_name(file)
    found = levels.compare(
        options.level,
        rounds=levels.ROUNDS if options.rounds is None else options.rounds,
        template=options.template,
        transport=client.default_transport(),
        on_step=_render.note,
    )
    if file is not None:
        levels.write(found, file)
    if options.json:
        _render.plain(levels.as_json(found).decode())
    else:
        _render.table(levels.headings(found), levels.rows(found))
        _render.lines(levels.notes(found))
    return 0


verb_eval = Verbs(injection=_injection)
