"""Keep room on the disk for the next daemon. A user whose disk is full must be able to end the sandboxes on it.

A daemon needs a few hundred KB to start: SQLite's log, the audit log, sockets. Without them no verb would work, those
that make room included.
"""

from __future__ import annotations

import os
from pathlib import Path

from paddock.linux.descriptors import closing

FILE = "reserve"
BYTES = 4 << 20
_PLENTY_BYTES = 16 * BYTES


def release(state_dir: Path) -> bool:
    """Delete the reserve if the disk is full. Return whether that made room."""
    if _free_bytes(state_dir) >= BYTES:
        return False
    try:
        os.unlink(state_dir / FILE)
    except FileNotFoundError:
        return False
    return True


def renew(state_dir: Path) -> None:
    """Allocate the reserve, if it isn't whole and there is room for much more. Raises OSError."""
    if _free_bytes(state_dir) < _PLENTY_BYTES:
        return
    with closing(os.open(state_dir / FILE, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)) as file:
        if os.fstat(file).st_size < BYTES:  # a daemon may have died while it made it
            os.posix_fallocate(file, 0, BYTES)


def _free_bytes(state_dir: Path) -> int:
    disk = os.statvfs(state_dir)
    return disk.f_bavail * disk.f_frsize
