"""The nodes of a session: the files that the guest's kernel has looked up, by number.

A node has a parent and a name, which follow renames, and while in use also a descriptor. There are more nodes than
descriptors. `Nodes` closes the longest unused ones, and reopens them by name, one component after the other, without
following links. The result must be the same file. A file without a name keeps its descriptor.
"""

from __future__ import annotations

import errno
import os
import stat
import struct
from collections import OrderedDict

from paddock.linux.openat2 import open_beneath
from paddock.linux.syscall import call

from ._fuse_wire import ROOT

MAX_NODES = 1 << 20
MAX_DEPTH = 4096
_FOREVER = 365 * 86400

Key = tuple[int, int, int, bool]  # export, device, inode, and whether the mount is read-only


class Export:
    """A directory for the machine.

    `shared`: other programs write there too, so the kernel may cache nothing for long.

    `across`: read-only parts of it are mounts over themselves, and lookups enter these.
    """

    __slots__ = ("across", "directory", "index", "name", "shared", "writable")

    def __init__(self, name: bytes, directory: int, writable: bool, shared: bool = False, across: bool = False) -> None:
        self.name, self.directory = name, directory  # a descriptor
        self.writable, self.shared, self.across = writable, shared, across
        self.index = 0

    @property
    def seconds(self) -> int:
        return 1 if self.shared else _FOREVER

    def key(self, fd: int, status: os.stat_result) -> Key:
        """Return the key of a node.

        If a file had a second name before one of them became read-only, it counts as two: the key then differs.
        """
        is_read_only = self.across and bool(os.fstatvfs(fd).f_flag & os.ST_RDONLY)
        return (self.index, status.st_dev, status.st_ino, is_read_only)


class Node:
    """A file.

    `parent` None: the export's own directory. `name` None: no known name. `kind`: S_IFMT.

    Not `checked`: another process saved the node, and in a copy its key may differ.
    """

    __slots__ = ("checked", "data_fd", "export", "fd", "key", "kind", "lookups", "name", "number", "parent", "writable")

    def __init__(
        self,
        number: int,
        export: Export,
        parent: Node | None,
        name: bytes | None,
        kind: int,
        key: Key | None = None,
        checked: bool = True,
        lookups: int = 0,
    ) -> None:
        self.number, self.export, self.parent, self.name, self.kind = number, export, parent, name, kind
        self.key, self.checked, self.lookups = key, checked, lookups
        self.fd = -1  # O_PATH; -1: closed
        self.data_fd = -1  # open for data
        self.writable = False  # `data_fd` is


class Nodes:
    def __init__(self, exports: tuple[Export, ...], *, descriptors: int = 4096) -> None:
        self.exports = exports
        self._max_open = max(descriptors, 64)
        self._max_open_data = max(descriptors // 8, 16)
        self.by_number: dict[int, Node] = {}
        self.by_key: dict[Key, Node] = {}
        self._open: OrderedDict[int, Node] = OrderedDict()
        self.nameless: OrderedDict[int, Node] = OrderedDict()
        self._open_data: OrderedDict[int, Node] = OrderedDict()
        self._next = ROOT + 1
        self.roots: dict[bytes, Node] = {}
        for index, export in enumerate(exports):
            export.index = index
            self.roots[export.name] = self._root(export)

    def _root(self, export: Export) -> Node:
        status = os.fstat(export.directory)
        if not stat.S_ISDIR(status.st_mode):
            raise NotADirectoryError(errno.ENOTDIR, "an export that is not a directory")
        key = export.key(export.directory, status)
        node = self._new(export, None, export.name, stat.S_IFDIR, key)
        node.fd = export.directory
        return node

    def _new(self, export: Export, parent: Node | None, name: bytes, kind: int, key: Key | None) -> Node:
        node = Node(self._next, export, parent, name, kind, key)
        self._next += 1
        self.by_number[node.number] = node
        if key is not None:
            self.by_key[key] = node
        return node

    def node(self, number: int) -> Node:
        node = self.by_number.get(number)
        if node is None:
            raise OSError(errno.ESTALE, "no such node")
        return node

    @property
    def full(self) -> bool:
        return len(self.by_number) >= MAX_NODES

    # looking up

    def look_up(self, parent: Node, name: bytes, fd: int) -> tuple[Node, os.stat_result]:
        """Return the node of the file `name` in `parent`, with one lookup more. It owns `fd` from now on."""
        try:
            status = os.fstat(fd)
            kind = stat.S_IFMT(status.st_mode)
            key = parent.export.key(fd, status)
            node = self.by_key.get(key)
            if node is None or node.kind != kind:
                if self.full:
                    raise OSError(errno.ENFILE, "more files than are kept track of")
                node = self._new(parent.export, parent, name, kind, key)
            elif node.parent is not None:
                node.parent, node.name = parent, name
                self.unmark_nameless(node)
        except OSError:
            os.close(fd)
            raise
        node.lookups += 1
        if node.fd < 0:
            self._set_fd(node, fd)
        else:
            os.close(fd)
            self._touch(node)
        return node, status

    def forget(self, number: int, lookups: int) -> None:
        node = self.by_number.get(number)
        if node is None:
            return
        node.lookups -= min(lookups, node.lookups)
        if node.lookups == 0 and node.parent is not None:
            self._drop(node)

    def forget_all(self) -> None:
        for node in list(self.by_number.values()):
            node.lookups = 0
            if node.parent is not None:
                self._drop(node)

    def _drop(self, node: Node) -> None:
        del self.by_number[node.number]
        self._unkey(node)
        self.close_data(node)
        self._close_fd(node)

    # descriptors

    def fd(self, node: Node) -> int:
        """Return the node's descriptor, which is valid until the next call."""
        if node.fd >= 0:
            self._touch(node)
            return node.fd
        chain: list[Node] = []
        ancestor: Node | None = node
        while ancestor is not None and ancestor.fd < 0:
            if len(chain) == MAX_DEPTH:
                raise OSError(errno.ELOOP, "too deep")
            chain.append(ancestor)
            ancestor = ancestor.parent
        for step in reversed(chain):
            if step.parent is None or step.name is None:
                raise OSError(errno.ESTALE, "a file without a name")
            self._reopened(step, open_path(step.parent.fd, step.name, across=step.export.across))
        return node.fd

    def _reopened(self, node: Node, fd: int) -> None:
        status = os.fstat(fd)
        key = node.export.key(fd, status)
        if stat.S_IFMT(status.st_mode) != node.kind or (node.checked and node.key != key):
            os.close(fd)
            raise OSError(errno.ESTALE, "another file is there now")
        self._rekey(node, key)
        node.checked = True
        self._set_fd(node, fd)

    def status(self, node: Node) -> os.stat_result:
        """Return the status of the file, and update its key: an overlay changes a file's number at its first write."""
        fd = self.fd(node)
        status = os.fstat(fd)
        self._rekey(node, node.export.key(fd, status))
        return status

    def _rekey(self, node: Node, key: Key) -> None:
        if node.key == key or node.number not in self.by_number:
            return
        self._unkey(node)
        node.key = key
        self.by_key.setdefault(key, node)

    def _unkey(self, node: Node) -> None:
        if node.key is not None and self.by_key.get(node.key) is node:
            del self.by_key[node.key]

    def data_fd(self, node: Node, *, write: bool) -> int:
        """Return a descriptor for the file's data, which is valid until the next call."""
        if node.kind == stat.S_IFDIR and not write:
            flags = os.O_RDONLY | os.O_DIRECTORY
        elif node.kind == stat.S_IFREG:
            flags = os.O_RDWR if write else os.O_RDONLY
        else:
            raise OSError(errno.EINVAL, "neither file nor directory")
        if write and not node.export.writable:
            raise OSError(errno.EROFS, "read-only")
        if node.data_fd < 0 or (write and not node.writable):
            fd = _open_as_owner(self.fd(node), flags, node.export)
            self.close_data(node)
            self.set_data(node, fd, write)
        self._open_data.move_to_end(node.number)
        return node.data_fd

    def open_dir(self, node: Node) -> int:
        """Return a descriptor to list a directory. The caller closes it."""
        return _open_as_owner(self.fd(node), os.O_RDONLY | os.O_DIRECTORY, node.export)

    def set_data(self, node: Node, fd: int, writable: bool) -> None:
        node.data_fd, node.writable = fd, writable
        self._open_data[node.number] = node
        if len(self._open_data) > self._max_open_data:
            self.close_data(next(iter(self._open_data.values())))

    def close_data(self, node: Node) -> None:
        if node.data_fd >= 0:
            os.close(node.data_fd)
            node.data_fd = -1
            self._open_data.pop(node.number, None)

    def mark_nameless(self, node: Node) -> None:
        """Keep the descriptor of a file that loses its name, until the guest's kernel forgets it."""
        self.fd(node)
        self._open.pop(node.number, None)
        self.nameless[node.number] = node
        if len(self.nameless) > self._max_open:
            oldest = next(iter(self.nameless.values()))  # it is stale from now on, and says so
            self.close_data(oldest)
            self._close_fd(oldest)
            self._unkey(oldest)  # its number on the disk may be another file's next

    def unmark_nameless(self, node: Node) -> None:
        """Note that the file has a name after all."""
        if self.nameless.pop(node.number, None) is not None:
            self._set_fd(node, node.fd)

    def _set_fd(self, node: Node, fd: int) -> None:
        node.fd = fd
        self._open[node.number] = node
        if len(self._open) > self._max_open:
            # Half of them at once: the parents of the present file are the youngest.
            for _ in range(len(self._open) // 2):
                self._close_fd(next(iter(self._open.values())))

    def _close_fd(self, node: Node) -> None:
        self._open.pop(node.number, None)
        self.nameless.pop(node.number, None)
        if node.fd >= 0 and node.parent is not None:
            os.close(node.fd)
            node.fd = -1

    def _touch(self, node: Node) -> None:
        if node.number in self._open:
            self._open.move_to_end(node.number)

    # nodes from another process

    def restore_root(self, export: int, number: int, lookups: int) -> Node:
        node = self.roots[self.exports[export].name]
        del self.by_number[node.number]
        node.number, node.lookups = number, lookups
        return self._register(node)

    def restore(self, parent: Node, name: bytes | None, number: int, kind: int, lookups: int, ino: int) -> Node:
        """Add a node of another process. `ino` identifies two names of one file, if the copy preserves that."""
        node = Node(number, parent.export, parent, name, kind, lookups=lookups, checked=False)
        root = self.roots[parent.export.name]
        if ino and lookups and root.key is not None:
            node.key = (root.key[0], root.key[1], ino, False)
            self.by_key.setdefault(node.key, node)
        return self._register(node)

    def _register(self, node: Node) -> Node:
        if node.lookups or node.parent is None:
            self.by_number[node.number] = node
        self._next = max(self._next, node.number + 1)
        return node


def _open_as_owner(fd: int, flags: int, export: Export) -> int:
    """Open a file, for which the guest's kernel has checked permissions.

    If its mode excludes us as its owner, open it all the same. git makes objects with mode 0444, and writes to them.
    """
    try:
        return reopen(fd, flags)
    except PermissionError:
        status = os.fstat(fd)
        if status.st_uid != os.geteuid() or not export.writable:
            raise
        os.chmod(f"/proc/self/fd/{fd}", stat.S_IMODE(status.st_mode) | 0o600)
        try:
            return reopen(fd, flags)
        finally:
            os.chmod(f"/proc/self/fd/{fd}", stat.S_IMODE(status.st_mode))


# system calls on a file by its O_PATH descriptor, never by a path that another process could change

_PATH_FLAGS = os.O_PATH | os.O_NOFOLLOW
UTIME_NOW, UTIME_OMIT = (1 << 30) - 1, (1 << 30) - 2
_TIMES = struct.Struct("=4q")


def open_path(directory: int, name: bytes, *, across: bool) -> int:
    """Return a descriptor of the file `name`, without following a link.

    Unless `across`, it must not be on another mount.
    """
    return open_beneath(directory, name, _PATH_FLAGS, cross_mounts=across)


def reopen(fd: int, flags: int) -> int:
    """Open the file of `fd`. The caller has checked that it is a regular file or a directory."""
    return os.open(proc_path(fd), flags | os.O_NOCTTY | os.O_NONBLOCK | os.O_CLOEXEC)


def proc_path(fd: int) -> str:
    """Return a path to the file behind a descriptor (for a link: to the link itself), for calls that need a path."""
    return f"/proc/self/fd/{fd}"


def kill_privileges(fd: int) -> None:
    """Clear the bits that a write by an ordinary user clears: the set-user-ID bit, and set-group-ID of a program."""
    mode = os.fstat(fd).st_mode
    kept = mode & ~stat.S_ISUID
    if mode & stat.S_IXGRP:
        kept &= ~stat.S_ISGID
    if kept != mode:
        os.chmod(proc_path(fd), stat.S_IMODE(kept))


def set_times(fd: int, accessed: tuple[int, int], modified: tuple[int, int]) -> None:
    """Set access and modification time, each in seconds and nanoseconds.

    UTIME_NOW and UTIME_OMIT replace nanoseconds.
    """
    times = _TIMES.pack(*accessed, *modified)
    call("utimensat", -100, proc_path(fd).encode(), times, 0)


def rename(old: int, old_name: bytes, new: int, new_name: bytes, flags: int) -> None:
    call("renameat2", old, old_name, new, new_name, flags)


def allocate(fd: int, mode: int, offset: int, length: int) -> None:
    call("fallocate", fd, mode, offset, length)
