"""`paddock gc`: what nobody needs goes."""

from __future__ import annotations

import argparse

from . import _render
from ._values import add_json


def add(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Deletes what nobody needs, and, while the pool is too full, what can be had again. "
        "Nothing that a living sandbox, a snapshot or a workspace needs."
    )
    parser.add_argument("--dry-run", action="store_true", help="only say what would go, and why the rest stays")
    add_json(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    from paddock.client import default_transport
    from paddock.model import CollectGarbage

    report = default_transport().perform(CollectGarbage(dry_run=options.dry_run))
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
