"""`paddock ls`: the sandboxes of this machine."""

from __future__ import annotations

import argparse
import time
from typing import TYPE_CHECKING

from . import _render
from ._values import add_json

if TYPE_CHECKING:
    from paddock.model import Sandbox


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-a", "--all", action="store_true", help="those that have ended too")
    add_json(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    from paddock import Sandbox

    found = [sandbox.info for sandbox in Sandbox.list(ended=options.all)]
    if options.json:
        _render.document(found)
    elif found:
        _render.table(("ID", "NAME", "STATE", "LEVEL", "TEMPLATE", "ENDS", "WHY"), [_row(info) for info in found])
    return 0


def _row(info: Sandbox) -> tuple[str, ...]:
    ends = "" if info.ended_at is not None else f"in {_render.span(info.expires_at - time.time())}"
    if info.kept_until is not None:
        ends = f"paused, kept until {_render.when(info.kept_until)[:16]}"
    why = info.reason or (str(info.limit) if info.limit else "")
    return info.id, info.spec.name or "", info.state, info.level, info.template, ends, why
