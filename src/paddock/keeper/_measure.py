"""What a sandbox uses, measured from outside by whoever has no control group and no quota to ask.

All of it is an attacker's and moves while it is looked at: a measure may be wrong, it may not fail or wait.
"""

from __future__ import annotations

import os
from collections.abc import Generator
from typing import NamedTuple

from paddock.linux import openat2, proc

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_ENTRIES_AT_ONCE = 200  # about a millisecond's worth
_LONGEST_PATH = 4000


class Process(NamedTuple):
    pid: int
    start: int
    bytes: int


def memory(pids: list[int], limit: int) -> tuple[int, list[Process]]:
    """Bytes that these use together, and each one's; pages that several share count once if it matters.

    Where what is resident stays below `limit` even counted several times, nothing more exact is asked for.
    """
    found = [known for pid in pids if (known := _resident(pid)) is not None]
    total = sum(process.bytes for process in found)
    if total > limit:
        found = [process._replace(bytes=_share(process)) for process in found]
        total = sum(process.bytes for process in found)
    return total, found


def _resident(pid: int) -> Process | None:
    try:
        return Process(pid, proc.start_time(pid), proc.resident_bytes(pid)[0])
    except (OSError, ValueError, IndexError):
        return None


def _share(process: Process) -> int:
    try:
        return proc.proportional_bytes(process.pid)
    except (OSError, ValueError):
        pass  # it has ended, or it is one of ours, into which nobody may look
    try:
        resident, shared = proc.resident_bytes(process.pid)
        return resident - shared
    except (OSError, ValueError, IndexError):
        return 0


class TooDeep(Exception):
    """A tree is nested deeper than paths can say."""


def tree(root: int) -> Generator[tuple[int, int], None, None]:
    """Bytes and files below the directory `root` so far, again and again: the last are those of the whole.

    Each step takes about a millisecond. A file with several names counts once. TooDeep.
    """
    size = count = 0
    several: set[int] = set()
    pending = [b"."]
    while pending:
        directory = pending.pop()
        try:
            fd = openat2.open_beneath(root, directory, _DIRECTORY, symlinks=False, cross_mounts=False)
        except OSError:
            continue  # it has been moved or removed
        try:
            with os.scandir(fd) as entries:
                for entry in entries:
                    try:
                        known = entry.stat(follow_symlinks=False)
                    except OSError:
                        continue
                    count += 1
                    if entry.is_dir(follow_symlinks=False):
                        below = directory + b"/" + os.fsencode(entry.name)
                        if len(below) > _LONGEST_PATH:
                            raise TooDeep
                        pending.append(below)
                    elif known.st_nlink > 1:
                        if known.st_ino in several:
                            continue
                        several.add(known.st_ino)
                    size += known.st_blocks * 512
                    if count % _ENTRIES_AT_ONCE == 0:
                        yield size, count
        finally:
            os.close(fd)
        yield size, count
