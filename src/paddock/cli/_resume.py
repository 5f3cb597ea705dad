"""`paddock resume`: paused sandboxes go on."""

from __future__ import annotations

import argparse

from . import _each


def add(parser: argparse.ArgumentParser) -> None:
    _each.add(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    from paddock.model import ResumeSandbox

    return _each.perform(options, lambda name: ResumeSandbox(sandbox=name))
