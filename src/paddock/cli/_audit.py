"""`paddock audit`: the record of what was asked, decided and done."""

from __future__ import annotations

import argparse

from . import _render
from ._values import add_json


def add(parser: argparse.ArgumentParser) -> None:
    audit = parser.add_subparsers(title="verbs", metavar="VERB", required=True)
    check = audit.add_parser(
        "verify",
        help="whether the record is whole",
        description="Follows every link of every segment. Exit code 1 if one is broken.",
        allow_abbrev=False,
    )
    add_json(check)
    check.set_defaults(run=verify)


def verify(options: argparse.Namespace) -> int:
    from paddock._compose import connector
    from paddock.model import VerifyAudit

    report = connector.connect().perform(VerifyAudit())
    if options.json:
        _render.document(report)
    elif report.ok:
        _render.line(f"ok: {report.records} records in {report.segments} segments, head {report.head}")
    else:
        _render.line(f"broken: {_render.escape(report.problem or 'no reason is given')}")
    return 0 if report.ok else 1
