"""Trees of what waits to become a sandbox (docs/design/levels.md, Waiting), of which no row is kept. Whoever needs one
has it locked, with a lock of the kernel's that ends with the program."""

from __future__ import annotations

import fcntl
import os
from contextlib import suppress

from paddock.errors import NotFound, PaddockError
from paddock.storage._base import Pool
from paddock.storage._trees import DIRECTORY, layers_in

WAITING = "wv_"


def keep(pool: Pool, name: str) -> int:
    """A descriptor that keeps it until it is closed. NotFound."""
    tree = pool.open(name)
    fcntl.flock(tree, fcntl.LOCK_SH | fcntl.LOCK_NB)
    return tree


def is_abandoned(pool: Pool, name: str) -> bool:
    """Nobody who lives keeps it."""
    try:
        tree = pool.open(name)
    except NotFound:
        return False
    try:
        fcntl.flock(tree, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    except BlockingIOError:
        return False
    finally:
        os.close(tree)


def is_untouched(pool: Pool, name: str) -> bool:
    """Nothing has been written in it, nor over a directory of the host's."""
    with suppress(PaddockError, OSError):
        tree = pool.open(name)
        try:
            return all(_is_empty(tree, part) for part in layers_in(tree))
        finally:
            os.close(tree)
    return False


def _is_empty(tree: int, part: str) -> bool:
    fd = os.open(part, DIRECTORY, dir_fd=tree)
    try:
        with os.scandir(fd) as entries:
            return next(entries, None) is None
    finally:
        os.close(fd)
