"""`paddock snapshots`: which there are; away with some."""

from __future__ import annotations

import argparse
import time

from . import _render
from ._values import add_json


def add(parser: argparse.ArgumentParser) -> None:
    parser.description = "Lists snapshots, oldest first; with --delete, deletes those that are named."
    parser.add_argument("sandbox", nargs="?", metavar="ID", help="only those of this sandbox")
    parser.add_argument("--delete", nargs="+", default=[], metavar="SNAPSHOT", help="id, unique prefix, or name")
    add_json(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    from paddock.client import default_transport
    from paddock.model import DeleteSnapshot, ListSnapshots

    transport = default_transport()
    for snapshot in options.delete:
        transport.perform(DeleteSnapshot(snapshot=snapshot))
    if options.delete:
        return 0
    found = transport.perform(ListSnapshots(sandbox=options.sandbox))
    if options.json:
        _render.document(found)
    elif found:
        rows = [(one.id, one.name or "", one.source, one.template, _when(one.created_at)) for one in found]
        _render.table(("ID", "NAME", "OF", "TEMPLATE", "MADE"), rows)
    return 0


def _when(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))
