"""`paddock workspaces`: which there are; away with some."""

from __future__ import annotations

import argparse
import time
from typing import TYPE_CHECKING

from . import _render
from ._values import add_json, seconds

if TYPE_CHECKING:
    from paddock.model import Workspace


def add(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Lists workspaces, those used least recently first. With --delete, deletes those that are named, if nothing is"
        " in them that is nowhere else; --discard, even so."
    )
    parser.add_argument("--delete", nargs="+", default=[], metavar="TASK", help="id, unique prefix of one, or name")
    parser.add_argument("--discard", action="store_true", help="with --delete: lose what is nowhere else")
    parser.add_argument("--pin", metavar="TASK", help="keep this one from being evicted")
    parser.add_argument("--for", type=seconds, default=86_400.0, dest="period", metavar="TIME", help="with --pin: 24h")
    parser.add_argument("--unpin", metavar="TASK", help="let it be evicted again")
    add_json(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    from paddock import Workspace

    for reference in options.delete:
        Workspace.get(reference).delete(discard=options.discard)
    if options.pin is not None:
        Workspace.get(options.pin).pin(options.period)
    if options.unpin is not None:
        Workspace.get(options.unpin).pin(0)
    if options.delete or options.pin is not None or options.unpin is not None:
        return 0
    found = [workspace.info for workspace in Workspace.list()]
    if options.json:
        _render.document(found)
    elif found:
        headings = ("TASK", "ID", "STATE", "SANDBOX", "REPOSITORY", "BRANCH", "COMMIT", "USED")
        _render.table(headings, [_row(info) for info in found])
    return 0


def _row(info: Workspace) -> tuple[str, ...]:
    pinned = info.pinned_until is not None and info.pinned_until > time.time()
    return (
        info.name,
        info.id,
        info.state + (", pinned" if pinned else ""),
        info.sandbox or "",
        info.repository or "",
        info.branch or "",
        (info.commit or "")[:12],
        f"{_render.span(time.time() - info.used_at)} ago",
    )
