"""`paddock status`: what a workspace holds that is nowhere else."""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from . import _render
from ._up import origin
from ._values import add_json

if TYPE_CHECKING:
    from paddock.model import WorkspaceStatus


def add(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "What the workspace of a task holds that is nowhere else: computed at this moment, in a sandbox of its own."
    )
    parser.add_argument("workspace", metavar="TASK", help="name, id, or unique prefix of one")
    add_json(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    from paddock import Workspace

    from ._progress import progress

    with progress("looking at the workspace"):
        status = Workspace.get(options.workspace).status()
    if options.json:
        _render.document(status)
        return 0
    _render.facts(tuple(_facts(status)))
    for path in status.paths:
        _render.line(f"  {_render.escape(path)}")
    more = status.modified + status.untracked - len(status.paths)
    if status.paths and more > 0:
        _render.line(f"  and {more} more")
    return 0


def _facts(status: WorkspaceStatus) -> Iterator[tuple[str, str]]:
    info = status.workspace
    yield "task", info.name
    yield "workspace", f"{info.id}, {info.state}"
    yield "began", origin(info)
    if info.sandbox is not None:
        yield "sandbox", info.sandbox
    elif info.state == "ready":
        yield "sandbox", f"none: paddock up --task {info.name}"
    if info.pinned_until is not None and info.pinned_until > time.time():
        yield "pinned", f"until {_render.when(info.pinned_until)}"
    if info.repository is not None:
        yield "head", f"{(status.head or 'none')[:12]} on {status.on or 'no branch'}"
    yield "only here", status.only_here
    if status.unreadable:
        yield "unreadable", status.unreadable
