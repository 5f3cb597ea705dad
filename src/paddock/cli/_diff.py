"""`paddock diff`: what a sandbox or a workspace has changed."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from ._changes import add_form, show
from ._values import add_sandbox

if TYPE_CHECKING:
    from paddock.client import DaemonTransport
    from paddock.model import MountDiff, WorkspaceDiff


def add(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Shows what a workspace holds that the commit it began with has not; or, with --mount or without a workspace,"
        " what a sandbox has changed in a directory of the host that it has copy-on-write."
    )
    add_sandbox(parser)
    parser.add_argument("paths", nargs="*", metavar="PATH", help="of a directory of the host: only these")
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
    from paddock.client import default_transport

    diff = _diff(default_transport(), options)
    show(options, diff, diff.changes, diff.patch)
    return 0


def _diff(transport: DaemonTransport, options: argparse.Namespace) -> MountDiff | WorkspaceDiff:
    from paddock.model import DiffMount, DiffWorkspace

    target, paths = target_and_paths(options)
    if options.mount is None and not paths and not _is_mounted(transport, options.sandbox):
        return transport.perform(DiffWorkspace(workspace=options.sandbox, patch=options.patch))
    return transport.perform(DiffMount(sandbox=options.sandbox, target=target, paths=paths, patch=options.patch))


def _is_mounted(transport: DaemonTransport, name: str) -> bool:
    """A sandbox without a workspace, and with a directory of the host."""
    from paddock.errors import NotFound
    from paddock.model import GetSandbox

    try:
        spec = transport.perform(GetSandbox(sandbox=name)).spec
    except NotFound:
        return False
    return spec.workspace is None and bool(spec.mounts)
