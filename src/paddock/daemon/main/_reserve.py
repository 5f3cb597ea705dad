"""Keep room on the disk for the next daemon. A user whose disk is full must be able to end the sandboxes on it.

A daemon needs a few hundred KB to start: SQLite's log, the audit log, sockets. Without them no verb would work, those
that make room included.
"""

from __future__ import annotations

import os
from pathlib import Path

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
    """Allocate the reserve, if there is none and room for much more. Raises OSError."""
    if (state_dir / FILE).exists() or _free_bytes(state_dir) < _PLENTY_BYTES:
        return
    file = os.open(state_dir / FILE, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        os.posix_fallocate(file, 0, BYTES)
    finally:
        os.close(file)


def _free_bytes(state_dir: Path) -> int:
    disk = os.statvfs(state_dir)
    return disk.f_bavail * disk.f_frsize
