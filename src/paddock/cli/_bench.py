"""`paddock bench`: what the levels of this machine cost and stop, side by side."""

from __future__ import annotations

import argparse
from pathlib import Path

from . import _render
from ._values import add_json


def add(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Makes sandboxes of each level in turns: how long each step of a life takes, what work costs inside beside the "
        "same work outside, and which of a number of harmless attacks by root inside get through. Minutes where "
        "machines are emulated. It changes no sandbox's level."
    )
    parser.add_argument("--levels", action="store_true", help="compare levels (there is nothing else to compare yet)")
    parser.add_argument(
        "--level",
        action="append",
        default=[],
        metavar="LEVEL",
        help="this one only; may be given again; `process` shows what gets through without a wall",
    )
    parser.add_argument("--rounds", type=int, metavar="N", help="sandboxes of each level (default: 5)")
    parser.add_argument("--template", default="host", metavar="NAME", help="default: host")
    parser.add_argument("-o", "--output", metavar="FILE", help="a report, by its name: .md, .json or .svg")
    add_json(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    from paddock.client import default_transport
    from paddock.eval import levels

    file = None if options.output is None else Path(options.output)
    if file is not None:
        levels.check_name(file)
    found = levels.compare(
        options.level,
        rounds=levels.ROUNDS if options.rounds is None else options.rounds,
        template=options.template,
        transport=default_transport(),
        on_step=_render.note,
    )
    if file is not None:
        levels.write(found, file)
    if options.json:
        _render.line(levels.as_json(found).decode())
        return 0
    _render.table(levels.headings(found), levels.rows(found))
    for note in levels.notes(found):
        _render.line(_render.escape(note))
    return 0
