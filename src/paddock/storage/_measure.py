"""Walks through trees, by descriptor, following nothing, in bounded depth: how much of the disk one takes."""

from __future__ import annotations

import os

from paddock.linux.descriptors import closing
from paddock.storage._trees import DIRECTORY

_DEEPEST = 100  # each level holds a descriptor
_BLOCK = 512


def measure(top: int) -> int:
    """Bytes of all that is below the directory `top`; of hard links one counts. At least: what lies deeper than a
    hundred directories, and what may not be looked at, is not counted."""
    seen: set[tuple[int, int]] = set()
    return _measure(top, seen, 0)


def _measure(directory: int, seen: set[tuple[int, int]], depth: int) -> int:
    total = os.fstat(directory).st_blocks * _BLOCK
    with os.scandir(directory) as entries:
        for entry in entries:
            try:
                info = entry.stat(follow_symlinks=False)
                if entry.is_dir(follow_symlinks=False):
                    total += _below(directory, entry.name, seen, depth)
                elif info.st_nlink == 1 or (info.st_dev, info.st_ino) not in seen:
                    total += info.st_blocks * _BLOCK
                    if info.st_nlink > 1:
                        seen.add((info.st_dev, info.st_ino))
            except (FileNotFoundError, PermissionError, NotADirectoryError):
                continue  # whoever owns the tree goes on with it
    return total


def _below(directory: int, name: str, seen: set[tuple[int, int]], depth: int) -> int:
    if depth == _DEEPEST:
        return 0
    with closing(os.open(name, DIRECTORY, dir_fd=directory)) as fd:
        return _measure(fd, seen, depth + 1)


def look_at(top: int, most: int) -> int:
    """Has the kernel know what is below the directory `top`, at most `most` entries: how many it was."""
    left = _look_at(top, most, 0)
    return most - left


def _look_at(directory: int, left: int, depth: int) -> int:
    with os.scandir(directory) as entries:
        for entry in entries:
            if left <= 0:
                break
            left -= 1
            try:
                entry.stat(follow_symlinks=False)
                if depth < _DEEPEST and entry.is_dir(follow_symlinks=False):
                    with closing(os.open(entry.name, DIRECTORY, dir_fd=directory)) as fd:
                        left = _look_at(fd, left, depth + 1)
            except (FileNotFoundError, PermissionError, NotADirectoryError):
                continue
    return left
