"""`paddock rollback`: a sandbox's files as they were."""

from __future__ import annotations

import argparse

from . import _render
from ._values import add_json


def add(parser: argparse.ArgumentParser) -> None:
    parser.description = "Ends all processes of a sandbox and takes its files back to a snapshot; its id stays."
    parser.add_argument("sandbox", metavar="ID", help="id, unique prefix of one, or name")
    parser.add_argument("snapshot", metavar="SNAPSHOT", help="id, unique prefix of one, or name")
    add_json(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    from paddock.client import default_transport
    from paddock.model import RollbackSandbox

    info = default_transport().perform(RollbackSandbox(sandbox=options.sandbox, snapshot=options.snapshot))
    if options.json:
        _render.document(info)
    else:
        _render.line(info.id)
    return 0
