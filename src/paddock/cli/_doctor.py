"""`paddock doctor`: what this machine can do, and the command that mends what it cannot."""

from __future__ import annotations

import argparse

from . import _render
from ._values import add_json


def add(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "What this machine can do, and how to mend what it cannot. Exit code 1 if no level can be used here."
    )
    add_json(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    from paddock._compose import connector
    from paddock.model import Diagnose

    diagnosis = connector.connect().perform(Diagnose())
    if options.json:
        _render.document(diagnosis)
    else:
        rows = [(c.status, c.area, c.name, c.detail, c.fix or "") for c in diagnosis.checks]
        _render.table(("STATUS", "AREA", "CHECK", "DETAIL", "FIX"), rows, marks=[row[0] for row in rows])
        _render.line(f"\nstate: {_render.escape(diagnosis.state_dir)}")
        _render.line(f"level unless another is asked for: {diagnosis.default_level or 'none can be used here'}")
    return 0 if diagnosis.default_level is not None else 1
