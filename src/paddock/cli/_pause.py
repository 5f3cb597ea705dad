"""`paddock pause`: sandboxes that stand still until they are used."""

from __future__ import annotations

import argparse

from . import _each


def add(parser: argparse.ArgumentParser) -> None:
    _each.add(parser)
    parser.add_argument("--to-disk", action="store_true", help="give its memory back as well (a microVM can)")
    parser.add_argument("--force", action="store_true", help="also while commands run in it: they stand still with it")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    from paddock.model import PauseSandbox

    return _each.perform(options, lambda name: PauseSandbox(sandbox=name, to_disk=options.to_disk, force=options.force))
