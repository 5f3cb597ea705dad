"""`paddock kill`: the end of sandboxes."""

from __future__ import annotations

import argparse

from paddock.errors import PaddockError

from . import _render
from ._values import add_json


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("sandboxes", nargs="+", metavar="ID", help="id, unique prefix of one, or name")
    add_json(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Each is tried, whatever becomes of the others."""
    from paddock._compose import connector
    from paddock.model import KillSandbox, Sandbox

    transport = connector.connect()
    killed: list[Sandbox] = []
    failed: PaddockError | None = None
    for name in options.sandboxes:
        try:
            killed.append(transport.perform(KillSandbox(sandbox=name)))
        except PaddockError as error:
            if failed is not None and not options.json:
                _render.failure(failed, as_json=False)
            failed = error
    if options.json and failed is None:
        _render.document(killed)
    if not options.json:
        for info in killed:
            _render.line(info.id)
    if failed is not None:
        raise failed
    return 0
