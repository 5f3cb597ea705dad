"""One writer at a time of one repository, among all programs of the machine."""

from __future__ import annotations

import asyncio
import fcntl
import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

_FIRST_SECONDS, _LAST_SECONDS = 0.01, 0.25


@asynccontextmanager
async def locked(path: Path) -> AsyncGenerator[None]:
    """While the block lasts nobody else has the lock of `path`; it ends with the program, however that ends.

    Asked for again and again: a thread that waited could not be cancelled, and there are few of them.
    """
    fd = await asyncio.to_thread(_open, path)
    try:
        pause = _FIRST_SECONDS
        while True:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                await asyncio.sleep(pause)
                pause = min(pause * 1.5, _LAST_SECONDS)
        yield
    finally:
        os.close(fd)


def _open(path: Path) -> int:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
