"""`paddock promote`: takes what a sandbox has changed in a mounted directory over into that directory."""

from __future__ import annotations

import argparse

from . import _render
from ._changes import show_table
from ._diff import add_mount, target_and_paths
from ._values import add_json, add_sandbox


def add(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Takes what a sandbox has changed in a directory that it has copy-on-write over into the directory itself, and"
        " prints it. All or nothing: device nodes, set-id bits, links that lead out, and files that the host has"
        " changed since are refused. What lies in .git stays in the sandbox."
    )
    add_sandbox(parser)
    parser.add_argument("paths", nargs="*", metavar="PATH", help="relative to the directory: only these")
    add_mount(parser)
    parser.add_argument("-n", "--dry-run", action="store_true", help="show what would be taken over, and do nothing")
    parser.add_argument("--git", action="store_true", help="commits and refs in .git too; never hooks or configuration")
    parser.add_argument("--force", action="store_true", help="also what the host has changed since: its changes go")
    add_json(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    from paddock.client import default_transport
    from paddock.model import PromoteMount

    target, paths = target_and_paths(options)
    action = PromoteMount(
        sandbox=options.sandbox,
        target=target,
        paths=paths,
        git=options.git,
        force=options.force,
        dry_run=options.dry_run,
    )
    done = default_transport().perform(action)
    if options.json:
        _render.document(done)
        return 0
    show_table(done.applied)
    would = "would be taken over" if done.dry_run else "taken over"
    _render.note(f"{len(done.applied)} changes {would} into {done.source}")
    if done.left_out:
        _render.note(f"{len(done.left_out)} changes in .git stay in the sandbox; --git takes commits and refs over")
    return 0
