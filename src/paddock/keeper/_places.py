"""Places in the tree of a sandbox to be, which an earlier one may have written: found through no link.

All paths are relative to the working directory, its root.
"""

from __future__ import annotations

import os
from contextlib import nullcontext

from paddock.linux import fsids, mounts, openat2

PLACE = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC


def move(mount: int, path: bytes) -> None:
    place = place_of(path)
    try:
        mounts.move_mount(mount, place)
    finally:
        os.close(place)


def place_of(path: bytes) -> int:
    """The directory to mount on, found without any link."""
    return openat2.open_beneath(mounts.AT_FDCWD, path, PLACE | os.O_NOFOLLOW, symlinks=False)


def attach(base: int | None, made: list[tuple[str, int]]) -> None:
    # What is missing of the way is made in the tree, whose owners are those of the range.
    for target, fd in sorted(made):
        path = os.fsencode(target).lstrip(b"/")
        with nullcontext() if base is None else fsids.acting_as(base, base):
            _make_place(path)
        move(fd, path)


def _make_place(path: bytes) -> None:
    parts = path.split(b"/")
    strict = os.umask(0o022)
    try:
        for depth in range(len(parts)):
            above = place_of(b"/".join(parts[:depth]) or b".")
            try:
                os.mkdir(parts[depth], dir_fd=above)
            except FileExistsError:
                continue
            finally:
                os.close(above)
    finally:
        os.umask(strict)
