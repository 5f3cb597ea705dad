"""The rules of all drivers: names of trees, their owners, the disk space of one, and which error an errno is."""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from itertools import islice
from typing import TYPE_CHECKING

from paddock.errors import (
    OUT_OF,
    AlreadyExistsError,
    InvalidArgumentError,
    NotFoundError,
    PaddockError,
    PlatformError,
    ResourceExhaustedError,
    logged,
)
from paddock.linux import files
from paddock.linux.descriptors import closing

if TYPE_CHECKING:
    from .base import Pool

NAME = re.compile(r"[a-z]{2}_[a-z0-9_]{1,60}", re.ASCII)
DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC
NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
ROOT = "root"
WORK = "work"
MOUNT = "mount"
BASIS = "basis"
"""An empty file beside the layers of mounts.

Its modification time is the age of those mounts. A copy of the tree keeps it.
"""
NOTE = "memory"
"""A file beside the layers: which memory the machine of this tree leans on (`memories`)."""
PROMOTED = "promoted"
"""Prefix of files beside the layers that list a mount's promoted files."""
WAITING = "wv_"
"""Prefix of the trees of spares (docs/design/waiting.md).

They have no row. The owner of one adds it to `Pool.in_use`.
"""
_MOUNT = re.compile(r"mount\d{1,3}", re.ASCII)
_WORK = re.compile(r"work\d{0,3}", re.ASCII)


def check_name(name: str) -> str:
    """Return `name`, if it is the name of a tree.

    Raises InvalidArgumentError: names come from ids, never from a user's input.
    """
    if NAME.fullmatch(name) is None:
        raise InvalidArgumentError(f"{name!r} is not the name of a tree", name=name)
    return name


def tree_error(error: OSError, name: str, doing: str) -> PaddockError:
    """Return the pool's error for an error of the kernel."""
    match error.errno:
        case errno.ENOENT:
            return NotFoundError(f"there is no tree {name!r}", name=name)
        case errno.EEXIST | errno.ENOTEMPTY:
            return AlreadyExistsError(f"there is a tree {name!r} already", name=name)
        case number if number in OUT_OF:
            return ResourceExhaustedError(
                f"cannot {doing} tree {name!r}: {error.strerror}",
                hint="`paddock gc` makes room; df -h; paddock doctor --storage",
                name=name,
            )
        case _:
            return PlatformError(f"cannot {doing} tree {name!r}: {error}", hint="paddock doctor --storage", name=name)


def make_frame(tree: int, base: int | None, mounts: int = 0) -> None:
    """Make `root` and `work` in the new directory `tree`, and a pair for each mount, owned by id 0 of trees."""
    make_part(tree, ROOT, base)
    make_part(tree, WORK, base)
    make_mount_parts(tree, base, mounts)


def make_mount_parts(tree: int, base: int | None, mounts: int) -> None:
    for number in range(mounts):
        make_part(tree, f"{MOUNT}{number}", base)
        make_part(tree, f"{WORK}{number}", base)
    if mounts:
        os.close(os.open(BASIS, NEW, 0o600, dir_fd=tree))


def layers_in(tree: int) -> list[str]:
    """Return the parts of a tree with written files: `root`, and one for each mount."""
    return sorted(name for name in names_in(tree) if name == ROOT or _MOUNT.fullmatch(name))


def works_in(tree: int) -> list[str]:
    """Return the directories that belong to one mounted overlay, and to no copy of the tree."""
    return sorted(name for name in names_in(tree) if _WORK.fullmatch(name))


def make_part(tree: int, part: str, base: int | None) -> None:
    os.mkdir(part, 0o755, dir_fd=tree)
    open_to_all(part, tree)
    if base is not None:
        os.chown(part, base, base, dir_fd=tree, follow_symlinks=False)


def copy_root(source: int, tree: int, *, keep_owner: bool) -> None:
    """Give the empty root of `tree` the owner, mode and time of `source`'s: an overlay shows those of its top."""
    info = os.stat(ROOT, dir_fd=source, follow_symlinks=False)
    if keep_owner:
        os.chown(ROOT, info.st_uid, info.st_gid, dir_fd=tree, follow_symlinks=False)
    os.chmod(ROOT, stat.S_IMODE(info.st_mode), dir_fd=tree)
    os.utime(ROOT, ns=(info.st_atime_ns, info.st_mtime_ns), dir_fd=tree, follow_symlinks=False)


def copy_notes(source: int, tree: int) -> None:
    """Copy the files beside the layers of one tree to another, with their times."""
    for name in names_in(source):
        if name in (BASIS, NOTE) or name.startswith(PROMOTED):
            with suppress(FileNotFoundError):
                os.unlink(name, dir_fd=tree)  # a new one would say that the mounts were made now
            with (
                os.fdopen(os.open(name, READ, dir_fd=source), "rb") as old,
                os.fdopen(os.open(name, NEW, 0o600, dir_fd=tree), "wb") as new,
            ):
                info = os.fstat(old.fileno())
                os.fchmod(new.fileno(), info.st_mode & 0o777)
                new.write(old.read())
                new.flush()
                os.utime(new.fileno(), ns=(info.st_atime_ns, info.st_mtime_ns))


def open_to_all(name: str, directory: int) -> None:
    """Let all users in, independent of our umask. The directory above is private to us."""
    os.chmod(name, 0o755, dir_fd=directory)  # noqa: S103


def names_in(directory: int) -> list[str]:
    """Return all names in a directory, by a new descriptor.

    Copies of a descriptor share its position. And through a descriptor btrfs shows only the entries of the time when a
    program opened or rewound it (fs/btrfs/inode.c, last_index).
    """
    with closing(os.open(".", DIRECTORY, dir_fd=directory)) as fd:
        return os.listdir(fd)


@contextmanager
def within(pool: Pool, name: str, doing: str) -> Generator[int]:
    """Keep tree `name` open during the block. An error of the kernel in it becomes an error about `doing`."""
    with closing(pool.open(name)) as tree:
        try:
            yield tree
        except OSError as error:
            raise tree_error(error, name, doing) from error


def is_there(pool: Pool, name: str) -> bool:
    try:
        os.close(pool.open(name))
    except NotFoundError:
        return False
    return True


def is_untouched(pool: Pool, name: str) -> bool:
    """Tell whether no program has written in a tree, or over a directory of the host."""
    with logged("look into the tree", name), closing(pool.open(name)) as tree:
        return not any(os.listdir(f"/proc/self/fd/{tree}/{part}") for part in layers_in(tree))
    return False


def sync_tree(pool: Pool, name: str) -> None:
    """Write the tree to the disk: a power loss takes nothing of it back."""
    with closing(pool.open(name)) as tree:
        files.sync_file_system(tree)


_DEEPEST = 100  # each level holds a descriptor
_BLOCK = 512


def measure(top: int) -> int:
    """Count the bytes of all files below the directory `top`.

    Hard links to one file count once.

    It is a lower bound. It doesn't count files deeper than a hundred directories, or unreadable ones.
    """
    blocks = os.fstat(top).st_blocks
    seen: set[tuple[int, int]] = set()
    for info in _below(top):
        linked = info.st_nlink > 1 and not stat.S_ISDIR(info.st_mode)
        if not linked or (info.st_dev, info.st_ino) not in seen:
            blocks += info.st_blocks
        if linked:
            seen.add((info.st_dev, info.st_ino))
    return blocks * _BLOCK


def look_at(top: int, most: int) -> int:
    """Load at most `most` entries below the directory `top` into the kernel's caches. Return how many there were."""
    return sum(1 for _ in islice(_below(top), most))


def _below(directory: int, depth: int = 0) -> Iterator[os.stat_result]:
    with os.scandir(directory) as entries:
        for entry in entries:
            try:
                info = entry.stat(follow_symlinks=False)
                yield info
                if depth < _DEEPEST and stat.S_ISDIR(info.st_mode):
                    with closing(os.open(entry.name, DIRECTORY, dir_fd=directory)) as fd:
                        yield from _below(fd, depth + 1)
            except (FileNotFoundError, PermissionError, NotADirectoryError):
                continue  # the tree's owner continues with it
