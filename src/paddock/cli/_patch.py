"""`paddock patch`: what a workspace holds, as `git apply` takes it."""

from __future__ import annotations

import argparse

from . import _render
from ._changes import show_patch
from ._values import add_json, add_workspace


def add(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Prints what a workspace holds that the commit it began with has not, untracked files too, as a patch for"
        " `git apply`: paddock patch T42 > T42.patch"
    )
    add_workspace(parser)
    add_json(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    from paddock.client import default_transport
    from paddock.model import DiffWorkspace

    diff = default_transport().perform(DiffWorkspace(workspace=options.workspace, patch=True))
    if options.json:
        _render.document(diff)
        return 0
    show_patch(diff.patch or b"", colour=False)
    return 0
