"""Deletes files that a sandbox wrote: by descriptor, in constant depth, without following links.

A tree may be 2,000 directories deep, contain directories of mode 000, and have paths beyond any limit. So this first
moves each subdirectory up to the top and empties it there. The depth is therefore never above two.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from paddock.errors import PlatformError
from paddock.linux import btrfs, openat2
from paddock.linux.descriptors import closing
from paddock.storage.pool.trees import DIRECTORY, ROOT, within

if TYPE_CHECKING:
    from paddock.storage.pool.base import Pool

_SHOWN = 5
_OUT_OF_DESCRIPTORS = (errno.EMFILE, errno.ENFILE)

_Problem = tuple[str, int]  # the name of an entry that the kernel doesn't delete, and the errno


def remove(parent: int, name: str) -> None:
    """Remove the directory `name` of `parent` with all its files, if it is there.

    Raises PlatformError with the files that it can't delete (an immutable file, a mount point), after all others.
    Raises OSError if this program has no free descriptors, or the file system no space, which isn't the tree's fault.
    """
    problems: list[_Problem] = []
    try:
        top = _open(parent, name)
    except FileNotFoundError:
        return
    except OSError as error:
        if error.errno in _OUT_OF_DESCRIPTORS:
            raise
        raise PlatformError(f"cannot delete {name!r}: {error}", name=name) from error
    with closing(top):
        _Emptying(top, problems).run()
    if not problems:
        _attempt(parent, name, partial(os.rmdir, name, dir_fd=parent), problems)
    if problems:
        if any(number == errno.ENOSPC for _, number in problems):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), name)
        shown = "; ".join(f"{entry[:80]!r}: {os.strerror(number)}" for entry, number in problems[:_SHOWN])
        raise PlatformError(
            f"{len(problems)} entries of {name!r} cannot be deleted: {shown}",
            hint="lsattr shows immutable files, findmnt mounts",
            name=name,
        )


def clear(parent: int, name: str) -> None:
    """Remove the entry `name` of `parent`, of any kind. `remove` deletes directories."""
    try:
        os.unlink(name, dir_fd=parent)
    except FileNotFoundError:
        pass
    except (IsADirectoryError, PermissionError):
        remove(parent, name)


def make_directory(parent: int, name: str | bytes) -> bool:
    """Make the directory `name` of `parent`, in place of another kind of file. Return False if it is there already."""
    try:
        os.mkdir(name, 0o700, dir_fd=parent)
    except FileExistsError:
        if stat.S_ISDIR(os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode):
            return False
        os.unlink(name, dir_fd=parent)
        os.mkdir(name, 0o700, dir_fd=parent)
    return True


class _Emptying:
    """The removal of a directory's content. A rename can't leave a nested subvolume, so that becomes a new `top`."""

    def __init__(self, top: int, problems: list[_Problem]) -> None:
        _make_writable(top)
        self._top = top
        self._device = os.fstat(top).st_dev
        self._problems = problems
        self._waiting: list[str] = []  # directories in `top`
        self._moved = 0
        self._prefix = f".{os.urandom(8).hex()}-"  # no name in the tree was chosen to be in the way of this one

    def run(self) -> None:
        self._empty(self._top)
        while self._waiting:
            name = self._waiting.pop()
            known = len(self._problems)
            try:
                directory = _open(self._top, name)
            except FileNotFoundError:
                continue
            except OSError as error:
                if error.errno in _OUT_OF_DESCRIPTORS:
                    raise
                self._problems.append((name, error.errno or errno.EIO))
                continue
            with closing(directory):
                if os.fstat(directory).st_dev == self._device:
                    self._empty(directory)
                else:
                    _Emptying(directory, self._problems).run()
            if len(self._problems) == known:
                _attempt(self._top, name, partial(os.rmdir, name, dir_fd=self._top), self._problems)

    def _empty(self, directory: int) -> None:
        """Unlink the files, and move directories up."""
        with os.scandir(directory) as entries:
            for entry in entries:
                name = entry.name
                if not entry.is_dir(follow_symlinks=False):
                    _attempt(directory, name, partial(os.unlink, name, dir_fd=directory), self._problems)
                elif directory == self._top:
                    self._waiting.append(name)
                else:
                    target = f"{self._prefix}{self._moved}"
                    self._moved += 1
                    move = partial(os.rename, name, target, src_dir_fd=directory, dst_dir_fd=self._top)
                    if _attempt(directory, name, move, self._problems):
                        self._waiting.append(target)


def _attempt(directory: int, name: str, action: Callable[[], None], problems: list[_Problem]) -> bool:
    """Do `action` on entry `name`. If its mode or a read-only flag prevents it, change that and try again."""
    try:
        try:
            action()
        except OSError as error:
            if error.errno == errno.EACCES:
                _allow(directory, name)
            elif error.errno == errno.EROFS:
                # A read-only subvolume can't move, either.
                with suppress(NotADirectoryError), closing(_open(directory, name)) as fd:
                    _make_writable(fd)
            else:
                raise
            action()
    except FileNotFoundError:
        return False  # another thread deletes the same tree
    except OSError as error:
        if error.errno in _OUT_OF_DESCRIPTORS:
            raise
        problems.append((name, error.errno or errno.EIO))
        return False
    return True


def _open(parent: int, name: str) -> int:
    """Open directory `name` itself, on the file system of `parent`: through no link and over no mount point."""
    try:
        fd = _open_directory(parent, name, os.O_RDONLY)
    except PermissionError:
        _allow(parent, name)
        fd = _open_directory(parent, name, os.O_RDONLY)
    if os.geteuid() != 0 and os.fstat(fd).st_mode & 0o300 != 0o300:
        os.fchmod(fd, 0o700)
    return fd


def _open_directory(parent: int, name: str, flags: int) -> int:
    flags |= os.O_DIRECTORY | os.O_NOFOLLOW
    return openat2.open_beneath(parent, os.fsencode(name), flags, cross_mounts=False)


def _allow(parent: int, name: str) -> None:
    """Give the owner all rights on `name`, if it is a directory."""
    try:
        fd = _open_directory(parent, name, os.O_PATH)
    except NotADirectoryError:
        return
    with closing(fd):
        os.chmod(f"/proc/self/fd/{fd}", 0o700)  # fchmod(2) takes no O_PATH descriptor


def _make_writable(directory: int) -> None:
    """Clear the read-only flag of `directory`, if it is a subvolume with one.

    If that fails, the removal of its content reports why.
    """
    with suppress(OSError):
        if btrfs.is_subvolume(directory) and btrfs.is_read_only(directory):
            btrfs.set_read_only(directory, False)


def leave_out(pool: Pool, tree: str, name: str) -> None:
    """Remove the entry `name` of the tree's root, of any kind. Raises NotFoundError."""
    with within(pool, tree, f"take {name!r} out of") as place:
        pool.worker.do(_remove, (place,), name)


def _remove(place: int, name: str) -> None:
    try:
        root = os.open(ROOT, DIRECTORY, dir_fd=place)
    except FileNotFoundError:
        return  # nothing was ever in it
    with closing(root):
        clear(root, name)
