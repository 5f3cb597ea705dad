"""Paths that nobody inside may change: mounted read-only over themselves, before anything foreign runs.

The directories above them become mounts too, writable ones: the kernel lets nobody move or remove what is mounted on
(EBUSY), so that none of them can be set aside and another put in its place.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator

from paddock.keeper._errors import MountError
from paddock.linux import mounts, openat2

_MISSING = (errno.ENOENT, errno.ENOTDIR)


def protect(paths: tuple[str, ...]) -> None:
    """In the working directory, the root of the sandbox to be. What is not there is passed over. MountError: a link is
    on the way, which could lead elsewhere tomorrow."""
    kept = [place for path in paths if _is_there(place := os.fsencode(path).strip(b"/"))]
    for place in sorted({above for path in kept for above in _above(path)} - set(kept)):
        _bind(place, 0)
    for place in sorted(set(kept)):
        _bind(place, mounts.RDONLY)


def _above(path: bytes) -> Iterator[bytes]:
    parts = path.split(b"/")
    return (b"/".join(parts[:count]) for count in range(1, len(parts)))


def _is_there(path: bytes) -> bool:
    try:
        os.close(_find(path))
    except OSError as error:
        if error.errno in _MISSING:
            return False
        raise
    return True


def _bind(path: bytes, attributes: int) -> None:
    place = _find(path)
    try:
        view = mounts.open_tree(b"", place, recursive=True)
        try:
            if attributes:
                mounts.set_attributes(view, set=attributes, recursive=True)
            mounts.move_mount(view, place)
        finally:
            os.close(view)
    finally:
        os.close(place)


def _find(path: bytes) -> int:
    try:
        return openat2.open_beneath(mounts.AT_FDCWD, path, os.O_PATH | os.O_NOFOLLOW, symlinks=False)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise MountError(
                f"/{os.fsdecode(path)!r} is to be protected, and there is a symbolic link on the way: protect what it"
                " leads to"
            ) from None
        raise
