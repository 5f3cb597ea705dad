"""Changes of a directory, told by the kernel (inotify(7))."""

from __future__ import annotations

import os
from pathlib import Path

from paddock.linux._syscall import NR, call

MOVED_FROM, DELETE, DELETE_SELF, MOVE_SELF = 0x40, 0x200, 0x400, 0x800


def watch(directory: Path, mask: int) -> int:
    """Return a descriptor that doesn't block and becomes readable with each change in `mask`. OSError."""
    descriptor = call(NR.INOTIFY_INIT1, os.O_NONBLOCK | os.O_CLOEXEC, what="inotify_init1")
    try:
        call(NR.INOTIFY_ADD_WATCH, descriptor, os.fsencode(directory), mask, what=("inotify_add_watch", directory))
    except OSError:
        os.close(descriptor)
        raise
    return descriptor
