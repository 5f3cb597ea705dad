"""Find places in the tree of a new sandbox, which an earlier one may have written: follow no link.

All paths are relative to the working directory, the tree's root.
"""

from __future__ import annotations

import errno
import os
from contextlib import nullcontext

from paddock.linux import fsids, mounts, openat2
from paddock.linux.descriptors import closing
from paddock.supervisor._errors import MountError

PLACE = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC


def find(path: bytes, flags: int = os.O_PATH, mode: int = 0) -> int:
    """Open a file, or a directory to mount on, without following any link."""
    return openat2.open_beneath(mounts.AT_FDCWD, path, flags | os.O_NOFOLLOW, mode)


def move(mount: int, path: bytes, flags: int = PLACE) -> None:
    with closing(find(path, flags)) as place:
        mounts.move_mount(mount, place)


def attach(base: int | None, attached: list[tuple[str, int]]) -> None:
    # Missing directories are made in the tree, whose owners are ids of the range.
    for target, fd in sorted(attached):
        path = os.fsencode(target).lstrip(b"/")
        with nullcontext() if base is None else fsids.acting_as(base, base):
            _make_place(path)
        move(fd, path)


def _make_place(path: bytes) -> None:
    parts = path.split(b"/")
    strict = os.umask(0o022)
    try:
        for depth in range(len(parts)):
            with closing(find(b"/".join(parts[:depth]) or b".", PLACE)) as above:
                try:
                    os.mkdir(parts[depth], dir_fd=above)
                except FileExistsError:
                    continue
    finally:
        os.umask(strict)


def protect(paths: tuple[str, ...]) -> None:
    """Mount each path read-only over itself, before foreign code runs.

    The directories above become mounts too, writable ones. The kernel refuses to move or remove a mount point (EBUSY),
    so no program can replace one of them. Missing paths are skipped. Raises MountError if a link is on the way, which
    could lead elsewhere later.
    """
    kept = {place for path in paths if _is_there(place := os.fsencode(path).strip(b"/"))}
    above = {place[:end] for place in kept for end, letter in enumerate(place) if letter == ord("/")}
    for place in sorted(above - kept):
        _bind(place, 0)
    for place in sorted(kept):
        _bind(place, mounts.RDONLY)


def _is_there(path: bytes) -> bool:
    try:
        os.close(_find_unlinked(path))
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


def _bind(path: bytes, attributes: int) -> None:
    with closing(_find_unlinked(path)) as place, closing(mounts.open_tree(b"", place, recursive=True)) as view:
        if attributes:
            mounts.set_attributes(view, set=attributes, recursive=True)
        mounts.move_mount(view, place)


def _find_unlinked(path: bytes) -> int:
    try:
        return find(path)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise MountError(
                f"/{os.fsdecode(path)!r} is to be protected, and there is a symbolic link on the way: protect what it"
                " leads to"
            ) from None
        raise
