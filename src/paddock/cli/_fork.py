"""`paddock fork`: new sandboxes with the files of one that lives."""

from __future__ import annotations

import argparse

from . import _render
from ._values import add_json, seconds


def add(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Makes sandboxes with the files of one that lives, at one instant, and prints their ids. They stay until"
        " `paddock kill` or their TTL."
    )
    parser.add_argument("sandbox", metavar="ID", help="id, unique prefix of one, or name")
    parser.add_argument("-n", "--count", type=int, default=1, metavar="N", help="how many (default: 1)")
    parser.add_argument("--ttl", type=seconds, metavar="TIME", help="they die after that (default: as the parent)")
    add_json(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    from paddock.client import default_transport
    from paddock.model import ForkSandbox

    # Whatever the parent is: this program ends at once.
    action = ForkSandbox(sandbox=options.sandbox, count=options.count, ttl_seconds=options.ttl, persistent=True)
    children = default_transport().perform(action)
    if options.json:
        _render.document(children)
    else:
        for child in children:
            _render.line(child.id)
    return 0
