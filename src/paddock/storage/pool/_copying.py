"""Copies of files that a sandbox wrote: by descriptor, in constant depth, without following links.

It keeps holes and hard links.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass

from paddock.linux.descriptors import closing
from paddock.storage.pool.removal import clear, make_directory
from paddock.storage.pool.trees import DIRECTORY, NEW, READ, copy_notes, layers_in, make_frame, names_in

_FICLONE = 0x4004_9409  # include/uapi/linux/fs.h
_CANNOT = frozenset({errno.EOPNOTSUPP, errno.EXDEV, errno.EINVAL, errno.ENOTTY, errno.ENOSYS})
# Not security.selinux and other attributes of the machine.
_ATTRIBUTES = ("user.", "trusted.overlay.", "security.capability", "system.posix_acl_")
_ATTRIBUTE_REFUSED = frozenset({errno.EOPNOTSUPP, errno.EPERM, errno.ENODATA, errno.EINVAL})
_WHITEOUT = os.makedev(0, 0)


@dataclass(slots=True)
class _Level:
    """A directory under copy: its identity on both sides and the rest of its entries."""

    source: tuple[int, int]
    info: os.stat_result
    opened: bool
    """Its mode excluded its owner, so the copier changed the mode until the end of the copy."""
    names: Iterator[str]

    def leave(self, source: int) -> None:
        if self.opened:
            os.fchmod(source, stat.S_IMODE(self.info.st_mode))


class Copier:
    """A copier of directories.

    Use one per copy of a tree: it remembers the hard links that it has met.

    The source takes precedence: its files replace the target's, and directories merge. A caller copies layers one after
    the other, lowest first.
    """

    def __init__(self, *, keep_owners: bool) -> None:
        self._keep_owners = keep_owners
        self._reflinks = True
        self._parked: set[tuple[int, int]] = set()
        self._parking = -1

    def copy(self, source: int, target: int) -> None:
        """Copy all that is in directory `source`, and its attributes, into directory `target`."""
        place = f".links-{os.urandom(8).hex()}"  # a name that no tree has chosen to be in the way
        os.mkdir(place, 0o700, dir_fd=target)
        self._parking = os.open(place, DIRECTORY, dir_fd=target)
        try:
            self._walk(os.dup(source), os.dup(target))
        finally:
            for name in names_in(self._parking):
                os.unlink(name, dir_fd=self._parking)
            os.close(self._parking)
            self._parked.clear()
            os.rmdir(place, dir_fd=target)
        self._finish(source, target, os.fstat(source))  # again: the parking place has changed its time

    def _walk(self, source: int, target: int) -> None:
        """Walk down and up with one descriptor on each side, so that no depth is too deep. Close both."""
        levels: list[_Level] = []
        try:
            levels.append(self._enter(source))
            while True:
                name = next(levels[-1].names, None)
                if name is not None:
                    info = os.stat(name, dir_fd=source, follow_symlinks=False)
                    if not stat.S_ISDIR(info.st_mode):
                        self._leaf(source, target, name, info)
                        continue
                    source, target = self._down(source, target, name)
                    levels.append(self._enter(source))
                    continue
                if len(levels) == 1:
                    self._finish(source, target, levels[0].info)
                    return
                above = self._above(source, target, levels[-2].source)  # while the modes let us
                below, (source, target) = (source, target), above
                try:
                    levels[-1].leave(below[0])
                    self._finish(*below, levels.pop().info)
                finally:
                    os.close(below[0])
                    os.close(below[1])
        finally:
            try:
                self._retreat(source, levels)
            finally:
                os.close(source)
                os.close(target)

    def _enter(self, source: int) -> _Level:
        info = os.fstat(source)
        opened = not self._keep_owners and info.st_mode & 0o500 != 0o500
        if opened:
            os.fchmod(source, stat.S_IMODE(info.st_mode) | 0o500)
        return _Level((info.st_dev, info.st_ino), info, opened, iter(names_in(source)))

    def _retreat(self, source: int, levels: list[_Level]) -> None:
        """Restore the modes of the directories on the way up after a failure. `source` stays open."""
        at = os.dup(source) if any(level.opened for level in levels) else -1
        try:
            while at != -1 and levels:
                above = os.open("..", DIRECTORY, dir_fd=at) if len(levels) > 1 else -1
                levels.pop().leave(at)
                os.close(at)
                at = above
        finally:
            if at != -1:
                os.close(at)

    def _down(self, source: int, target: int, name: str) -> tuple[int, int]:
        below = _open_for_reading(source, name, DIRECTORY)
        try:
            make_directory(target, name)
            made = _open_for_reading(target, name, DIRECTORY)
            os.fchmod(made, 0o700)  # a lower layer may have closed it to its owner
        except BaseException:
            os.close(below)
            raise
        os.close(source)
        os.close(target)
        return below, made

    def _above(self, source: int, target: int, expected: tuple[int, int]) -> tuple[int, int]:
        above = os.open("..", DIRECTORY, dir_fd=source)
        try:
            info = os.fstat(above)
            if (info.st_dev, info.st_ino) != expected:
                raise OSError(errno.ESTALE, "directories were moved while they were copied")
            return above, os.open("..", DIRECTORY, dir_fd=target)
        except BaseException:
            os.close(above)
            raise

    def _leaf(self, source: int, target: int, name: str, info: os.stat_result) -> None:
        clear(target, name)  # what a lower layer has put there
        kind = stat.S_IFMT(info.st_mode)
        if kind == stat.S_IFREG:
            self._file(source, target, name, info)
            return
        if kind == stat.S_IFLNK:
            os.symlink(os.readlink(name, dir_fd=source), name, dir_fd=target)
        elif kind in (stat.S_IFIFO, stat.S_IFSOCK) or (kind == stat.S_IFCHR and info.st_rdev == _WHITEOUT):
            os.mknod(name, kind | 0o600, info.st_rdev, dir_fd=target)
        else:
            return  # a device node, which no tree may carry on
        if self._keep_owners:
            os.chown(name, info.st_uid, info.st_gid, dir_fd=target, follow_symlinks=False)
        if kind != stat.S_IFLNK:
            os.chmod(name, stat.S_IMODE(info.st_mode), dir_fd=target)
        os.utime(name, ns=(info.st_atime_ns, info.st_mtime_ns), dir_fd=target, follow_symlinks=False)

    def _file(self, source: int, target: int, name: str, info: os.stat_result) -> None:
        identity = (info.st_dev, info.st_ino)
        parked = f"{info.st_dev:x}-{info.st_ino:x}"
        if identity in self._parked:
            try:
                os.link(parked, name, src_dir_fd=self._parking, dst_dir_fd=target)
                return
            except OSError as error:
                if error.errno != errno.EMLINK:
                    raise
        # Not blocking: the file may have become a fifo a moment ago.
        with closing(_open_for_reading(source, name, READ | os.O_NONBLOCK)) as reader:
            info = os.fstat(reader)
            if not stat.S_ISREG(info.st_mode):
                raise OSError(errno.ESTALE, "the tree changed while it was copied")
            with closing(os.open(name, NEW, 0o600, dir_fd=target)) as writer:
                self.content(reader, writer, info.st_size)
                self._finish(reader, writer, info)
        if info.st_nlink > 1 and identity not in self._parked:
            os.link(name, parked, src_dir_fd=target, dst_dir_fd=self._parking)
            self._parked.add(identity)

    def content(self, reader: int, writer: int, size: int) -> None:
        """Copy the content of one file into an empty one."""
        if self._reflinks:
            try:
                fcntl.ioctl(writer, _FICLONE, reader)
                return
            except OSError as error:
                if error.errno not in _CANNOT:
                    raise
                self._reflinks = False
        os.ftruncate(writer, size)
        position = 0
        while position < size:
            try:
                start = os.lseek(reader, position, os.SEEK_DATA)
            except OSError as error:
                if error.errno == errno.ENXIO:  # nothing but a hole from here on
                    return
                raise
            position = min(os.lseek(reader, start, os.SEEK_HOLE), size)
            os.lseek(writer, start, os.SEEK_SET)
            while start < position and (count := os.sendfile(writer, reader, start, position - start)):
                start += count

    def _finish(self, source: int, target: int, info: os.stat_result) -> None:
        """Set the attributes of `source` on `target`, in the one order in which they don't undo each other."""
        if self._keep_owners:
            os.chown(target, info.st_uid, info.st_gid)
        for name in os.listxattr(source):
            if name.startswith(_ATTRIBUTES):
                try:
                    os.setxattr(target, name, os.getxattr(source, name))
                except OSError as error:
                    if error.errno not in _ATTRIBUTE_REFUSED:
                        raise
        os.chmod(target, stat.S_IMODE(info.st_mode))
        os.utime(target, ns=(info.st_atime_ns, info.st_mtime_ns))


def _open_for_reading(parent: int, name: str, flags: int) -> int:
    """Open `name` even if its mode forbids it to its owner. It restores the mode afterwards."""
    try:
        return os.open(name, flags, dir_fd=parent)
    except PermissionError:
        place = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
    with closing(place):
        mode = stat.S_IMODE(os.fstat(place).st_mode)
        path = f"/proc/self/fd/{place}"
        os.chmod(path, mode | 0o700)
        try:
            return os.open(name, flags, dir_fd=parent)
        finally:
            os.chmod(path, mode)


def copy_tree(origin: int, tree: int, base: int | None) -> None:
    """Fill the new tree with the content of `origin`. Without a `base` all of it is ours."""
    make_frame(tree, base, len(layers_in(origin)) - 1)
    copy_layers(origin, tree, base is not None)
    copy_notes(origin, tree)


def copy_layers(origin: int, tree: int, keep_owners: bool) -> None:
    for part in layers_in(origin):
        with (
            closing(os.open(part, DIRECTORY, dir_fd=origin)) as source,
            closing(os.open(part, DIRECTORY, dir_fd=tree)) as target,
        ):
            Copier(keep_owners=keep_owners).copy(source, target)
