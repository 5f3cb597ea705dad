"""What a copy of a tree goes without."""

from __future__ import annotations

import os

from paddock.linux.descriptors import closing
from paddock.storage._base import Pool
from paddock.storage._removal import remove
from paddock.storage._trees import DIRECTORY, ROOT, within


def leave_out(pool: Pool, tree: str, name: str) -> None:
    """Takes the entry `name` of its root away, whatever it is: a sandbox may have written it. NotFound."""
    with within(pool, tree, f"take {name!r} out of") as place:
        pool.worker.do(_remove, (place,), name)


def _remove(place: int, name: str) -> None:
    try:
        root = os.open(ROOT, DIRECTORY, dir_fd=place)
    except FileNotFoundError:
        return  # nothing was ever in it
    with closing(root):
        try:
            os.unlink(name, dir_fd=root)
        except FileNotFoundError:
            return
        except IsADirectoryError:
            remove(root, name)
