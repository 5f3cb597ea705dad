"""Changes of a directory, reported by the kernel (inotify(7))."""

from __future__ import annotations

import os
from pathlib import Path

from paddock.linux.syscall import call

MODIFY, ATTRIB, MOVED_FROM, MOVED_TO, CREATE = 0x2, 0x4, 0x40, 0x80, 0x100
DELETE, DELETE_SELF, MOVE_SELF = 0x200, 0x400, 0x800


def watch(directory: Path, mask: int) -> int:
    """Return a descriptor that doesn't block and becomes readable with each change in `mask`. OSError."""
    descriptor = call("inotify_init1", os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        add(descriptor, directory, mask)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def add(descriptor: int, directory: Path, mask: int) -> None:
    """Have `descriptor` tell of another directory, too. OSError."""
    call("inotify_add_watch", descriptor, os.fsencode(directory), mask, what=("inotify_add_watch", directory))
