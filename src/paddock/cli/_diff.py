"""`paddock diff`: what a sandbox has changed in a directory that was mounted copy-on-write."""

from __future__ import annotations

import argparse

from ._changes import add_form, show
from ._values import add_sandbox


def add(parser: argparse.ArgumentParser) -> None:
    parser.description = "Shows what a sandbox has changed in a directory of the host that it has copy-on-write."
    add_sandbox(parser)
    parser.add_argument("paths", nargs="*", metavar="PATH", help="relative to the directory: only these")
    add_mount(parser)
    add_form(parser)
    parser.set_defaults(run=run)


def add_mount(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--mount",
        nargs="?",
        const="",
        metavar="TARGET",
        help="which mount, by where it is inside; needed where there are several",
    )


def target_and_paths(options: argparse.Namespace) -> tuple[str | None, tuple[str, ...]]:
    """A target begins with `/`; what follows `--mount` and does not is a path."""
    target, paths = options.mount or None, tuple(options.paths)
    if target is not None and not target.startswith("/"):
        return None, (target, *paths)
    return target, paths


def run(options: argparse.Namespace) -> int:
    from paddock._compose import connector
    from paddock.model import DiffMount

    target, paths = target_and_paths(options)
    action = DiffMount(sandbox=options.sandbox, target=target, paths=paths, patch=options.patch)
    diff = connector.connect().perform(action)
    show(options, diff, diff.changes, diff.patch)
    return 0
