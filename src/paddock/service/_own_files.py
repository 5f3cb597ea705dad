"""Which files a sandbox has made itself: those may be deleted from outside without a person's yes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import ExitStack
from os import close, fsencode

from paddock.errors import NotFound
from paddock.model import Template
from paddock.storage import Pool, is_new

from ._store import Row
from ._workspace_tree import WORKSPACE


async def is_own(pool: Callable[[], Pool], path: str, row: Row, template: Template) -> bool:
    """Whether what is at the absolute `path` was not there when this sandbox was made. False when in doubt."""
    place = _place(path, row, template)
    if place is None or pool().driver == "copy":  # there a tree holds all that is below it, too
        return False
    since_ns = int(row.sandbox.created_at * 1_000_000_000)
    return await asyncio.to_thread(_look, pool(), *place, since_ns)


def _look(pool: Pool, tree: str, layers: tuple[str, ...], path: str, since_ns: int) -> bool:
    with ExitStack() as opened:

        def opening(name: str) -> int:
            fd = pool.open(name)
            opened.callback(close, fd)
            return fd

        try:
            return is_new(opening(tree), [opening(layer) for layer in layers], fsencode(path), since_ns)
        except (NotFound, OSError):
            return False


def _place(path: str, row: Row, template: Template) -> tuple[str, tuple[str, ...], str] | None:
    """The tree where what is at `path` was written, what it lies over, and the path in it; None: none of ours."""
    if row.workspace is not None and path.startswith(WORKSPACE + "/"):
        return row.workspace.tree, row.workspace.layers, path.removeprefix(WORKSPACE + "/")
    elsewhere = (*(mount.target for mount in row.sandbox.spec.mounts), *(("/usr",) if template.host_usr else ()))
    if path == "/" or any((path + "/").startswith(target.rstrip("/") + "/") for target in elsewhere):
        return None
    return row.id, template.layers, path.removeprefix("/")
