"""Names that change places in one step (renameat2(2), Linux 3.15)."""

from __future__ import annotations

import os

from paddock.linux._syscall import call

_EXCHANGE = 2  # include/uapi/linux/fs.h


def exchange(directory: int, one: str, other: str) -> None:
    """Each name in `directory` is the other's then. FileNotFoundError if one is missing; EINVAL where a file system
    can't."""
    first, second = os.fsencode(one), os.fsencode(other)
    what = ("renameat2", first, second)
    call("renameat2", directory, first, directory, second, _EXCHANGE, what=what)
