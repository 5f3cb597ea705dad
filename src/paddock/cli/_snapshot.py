"""`paddock snapshot`: keeps the files of a sandbox as they are now."""

from __future__ import annotations

import argparse

from . import _render
from ._values import add_json


def add(parser: argparse.ArgumentParser) -> None:
    parser.description = "Keeps the files of a sandbox as they are at this instant, and prints the snapshot's id."
    parser.add_argument("sandbox", metavar="ID", help="id, unique prefix of one, or name")
    parser.add_argument("--name", help="another way to say which; unique among snapshots")
    add_json(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    from paddock.client import default_transport
    from paddock.model import CreateSnapshot

    snapshot = default_transport().perform(CreateSnapshot(sandbox=options.sandbox, name=options.name))
    if options.json:
        _render.document(snapshot)
    else:
        _render.line(snapshot.id)
    return 0
