"""What the other kernel knows: a number for each file that it has looked up, and how the file is found again.

A node is its place (parent and name, kept right through renames), and while it is used a descriptor that holds it.
Descriptors are few, nodes are many: one whose descriptor was closed is opened again by its place, one component after
the other without following anything, and must be the file that it was. A file without a name keeps its descriptor.
"""

from __future__ import annotations

import ctypes
import errno
import os
import stat
import struct
from collections import OrderedDict

from ._fuse_wire import ROOT

MAX_NODES = 1 << 20
MAX_DEPTH = 4096
_FOREVER = 365 * 86400

Key = tuple[int, int, int, bool]  # export, device, inode, and whether it is reached by what can only be read


class Export:
    """A directory that is shown. `shared`: others write there too, so that nothing of it may be remembered for long.
    `across`: parts of it are kept as they are, by mounts over themselves, and these are entered."""

    __slots__ = ("across", "directory", "index", "name", "shared", "writable")

    def __init__(self, name: bytes, directory: int, writable: bool, shared: bool = False, across: bool = False) -> None:
        self.name, self.directory = name, directory  # a descriptor
        self.writable, self.shared, self.across = writable, shared, across
        self.index = 0

    @property
    def seconds(self) -> int:
        return 1 if self.shared else _FOREVER

    def key(self, held: int, status: os.stat_result) -> Key:
        """Return the key of a node. A file that had a second name before one of them was protected is two: it has its
        name in the key."""
        kept = self.across and bool(os.fstatvfs(held).f_flag & os.ST_RDONLY)
        return (self.index, status.st_dev, status.st_ino, kept)


class Node:
    """`parent` None: the export's own directory; `name` None: it has no name any more, or none that we know; `kind`:
    S_IFMT; not `seen`: taken up from another process, and in a copy the key may be another."""

    __slots__ = ("data", "export", "held", "key", "kind", "lookups", "name", "number", "parent", "seen", "writable")

    def __init__(
        self,
        number: int,
        export: Export,
        parent: Node | None,
        name: bytes | None,
        kind: int,
        key: Key | None = None,
        seen: bool = True,
        lookups: int = 0,
    ) -> None:
        self.number, self.export, self.parent, self.name, self.kind = number, export, parent, name, kind
        self.key, self.seen, self.lookups = key, seen, lookups
        self.held = -1  # O_PATH
        self.data = -1  # open for data
        self.writable = False  # `data` is


class Nodes:
    def __init__(self, exports: tuple[Export, ...], *, descriptors: int = 4096) -> None:
        self.exports = exports
        self._most_held = max(descriptors, 64)
        self._most_data = max(descriptors // 8, 16)
        self.by_number: dict[int, Node] = {}
        self.by_key: dict[Key, Node] = {}
        self._held: OrderedDict[int, Node] = OrderedDict()
        self.nameless: OrderedDict[int, Node] = OrderedDict()
        self._data: OrderedDict[int, Node] = OrderedDict()
        self._next = ROOT + 1
        self.roots: dict[bytes, Node] = {}
        for index, export in enumerate(exports):
            export.index = index
            self.roots[export.name] = self._root(export)

    def _root(self, export: Export) -> Node:
        status = os.fstat(export.directory)
        if not stat.S_ISDIR(status.st_mode):
            raise NotADirectoryError(errno.ENOTDIR, "an export that is no directory")
        key = export.key(export.directory, status)
        node = self._new(export, None, export.name, stat.S_IFDIR, key)
        node.held = export.directory
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

    def enter(self, parent: Node, name: bytes, held: int) -> tuple[Node, os.stat_result]:
        """Return the node of what was found as `name` in `parent`, with one lookup more. `held` is ours from now on."""
        try:
            status = os.fstat(held)
            kind = stat.S_IFMT(status.st_mode)
            key = parent.export.key(held, status)
            node = self.by_key.get(key)
            if node is None or node.kind != kind:
                if self.full:
                    raise OSError(errno.ENFILE, "more files than are kept track of")
                node = self._new(parent.export, parent, name, kind, key)
            elif node.parent is not None:
                node.parent, node.name = parent, name
                self.named(node)
        except OSError:
            os.close(held)
            raise
        node.lookups += 1
        if node.held < 0:
            self._keep(node, held)
        else:
            os.close(held)
            self._used(node)
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
        self._let_go(node)

    # descriptors

    def held(self, node: Node) -> int:
        """Return the descriptor that holds it; valid until the next call."""
        if node.held >= 0:
            self._used(node)
            return node.held
        way: list[Node] = []
        above: Node | None = node
        while above is not None and above.held < 0:
            if len(way) == MAX_DEPTH:
                raise OSError(errno.ELOOP, "too deep")
            way.append(above)
            above = above.parent
        for one in reversed(way):
            if one.parent is None or one.name is None:
                raise OSError(errno.ESTALE, "a file without a name")
            self._found(one, hold(one.parent.held, one.name, across=one.export.across))
        return node.held

    def _found(self, node: Node, held: int) -> None:
        status = os.fstat(held)
        key = node.export.key(held, status)
        if stat.S_IFMT(status.st_mode) != node.kind or (node.seen and node.key != key):
            os.close(held)
            raise OSError(errno.ESTALE, "another file is there now")
        self._rekey(node, key)
        node.seen = True
        self._keep(node, held)

    def status(self, node: Node) -> os.stat_result:
        """Also notes the number that it has now: an overlay gives a file another when it is first written to."""
        held = self.held(node)
        status = os.fstat(held)
        self._rekey(node, node.export.key(held, status))
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

    def data(self, node: Node, *, write: bool) -> int:
        """Return a descriptor to read or write it by; valid until the next call."""
        if node.kind == stat.S_IFDIR and not write:
            flags = os.O_RDONLY | os.O_DIRECTORY
        elif node.kind == stat.S_IFREG:
            flags = os.O_RDWR if write else os.O_RDONLY
        else:
            raise OSError(errno.EINVAL, "neither file nor directory")
        if write and not node.export.writable:
            raise OSError(errno.EROFS, "read-only")
        if node.data < 0 or (write and not node.writable):
            fd = _open_as_owner(self.held(node), flags, node.export)
            self.close_data(node)
            self.set_data(node, fd, write)
        self._data.move_to_end(node.number)
        return node.data

    def listed(self, node: Node) -> int:
        """Return a descriptor to list a directory by; the caller's."""
        return _open_as_owner(self.held(node), os.O_RDONLY | os.O_DIRECTORY, node.export)

    def set_data(self, node: Node, fd: int, writable: bool) -> None:
        node.data, node.writable = fd, writable
        self._data[node.number] = node
        if len(self._data) > self._most_data:
            self.close_data(next(iter(self._data.values())))

    def close_data(self, node: Node) -> None:
        if node.data >= 0:
            os.close(node.data)
            node.data = -1
            self._data.pop(node.number, None)

    def keep_nameless(self, node: Node) -> None:
        """Its name is about to go: what holds it stays open until it is forgotten."""
        self.held(node)
        self._held.pop(node.number, None)
        self.nameless[node.number] = node
        if len(self.nameless) > self._most_held:
            oldest = next(iter(self.nameless.values()))  # it is stale from now on, and says so
            self.close_data(oldest)
            self._let_go(oldest)
            self._unkey(oldest)  # its number on the disk may be another file's next

    def named(self, node: Node) -> None:
        """After all it has one."""
        if self.nameless.pop(node.number, None) is not None:
            self._keep(node, node.held)

    def _keep(self, node: Node, held: int) -> None:
        node.held = held
        self._held[node.number] = node
        if len(self._held) > self._most_held:
            # Half of them at once: those on the way to a file that is looked for are the youngest.
            for _ in range(len(self._held) // 2):
                self._let_go(next(iter(self._held.values())))

    def _let_go(self, node: Node) -> None:
        self._held.pop(node.number, None)
        self.nameless.pop(node.number, None)
        if node.held >= 0 and node.parent is not None:
            os.close(node.held)
            node.held = -1

    def _used(self, node: Node) -> None:
        if node.number in self._held:
            self._held.move_to_end(node.number)

    # taking up what another process has known

    def take_up_root(self, export: int, number: int, lookups: int) -> Node:
        node = self.roots[self.exports[export].name]
        del self.by_number[node.number]
        node.number, node.lookups = number, lookups
        return self._taken(node)

    def take_up(self, parent: Node, name: bytes | None, number: int, kind: int, lookups: int, ino: int) -> Node:
        """By `ino` two names of one file are known as such, where copies keep it."""
        node = Node(number, parent.export, parent, name, kind, lookups=lookups, seen=False)
        root = self.roots[parent.export.name]
        if ino and lookups and root.key is not None:
            node.key = (root.key[0], root.key[1], ino, False)
            self.by_key.setdefault(node.key, node)
        return self._taken(node)

    def _taken(self, node: Node) -> Node:
        if node.lookups or node.parent is None:
            self.by_number[node.number] = node
        self._next = max(self._next, node.number + 1)
        return node


def _open_as_owner(held: int, flags: int, export: Export) -> int:
    """Open it. The other kernel has checked who may. A file of ours that denies us is opened all the same: git makes
    its objects with mode 0444, and then writes to them."""
    try:
        return reopen(held, flags)
    except PermissionError:
        status = os.fstat(held)
        if status.st_uid != os.geteuid() or not export.writable:
            raise
        os.chmod(f"/proc/self/fd/{held}", stat.S_IMODE(status.st_mode) | 0o600)
        try:
            return reopen(held, flags)
        finally:
            os.chmod(f"/proc/self/fd/{held}", stat.S_IMODE(status.st_mode))


# calls of the kernel on a file that a descriptor only holds (O_PATH), never by a path that somebody could change

_HOW = struct.Struct("=QQQ")  # struct open_how: flags, mode, resolve
# RESOLVE_NO_MAGICLINKS | NO_SYMLINKS | BENEATH, and NO_XDEV (openat2(2), Linux 5.6)
_RESOLVE, _NO_XDEV = 0x02 | 0x04 | 0x08, 0x01
_OPENAT2 = 437  # on every machine
_ATTEMPTS = 64  # EAGAIN: something was renamed or mounted meanwhile, somewhere on the machine
_EMPTY_PATH = 0x1000
_HELD = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
UTIME_NOW, UTIME_OMIT = (1 << 30) - 1, (1 << 30) - 2
_TIMES = struct.Struct("=4q")

_libc = ctypes.CDLL(None, use_errno=True)
_pointer, _long, _int, _unsigned = ctypes.c_void_p, ctypes.c_long, ctypes.c_int, ctypes.c_uint32
_libc.syscall.restype = _long
_libc.syscall.argtypes = (_long, _long, _pointer, _pointer, _long)
_libc.fchownat.argtypes = (_int, ctypes.c_char_p, _unsigned, _unsigned, _int)
_libc.renameat2.argtypes = (_int, ctypes.c_char_p, _int, ctypes.c_char_p, ctypes.c_uint)
_libc.fallocate.argtypes = (_int, _int, ctypes.c_int64, ctypes.c_int64)
_libc.utimensat.argtypes = (_int, ctypes.c_char_p, _pointer, _int)


def _checked(result: int) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result


def hold(directory: int, name: bytes, *, across: bool = False) -> int:
    """Return a descriptor of what `name` is: of a link itself, not of what it leads to, and, but `across`, of no other
    mount."""
    how = _HOW.pack(_HELD, 0, _RESOLVE if across else _RESOLVE | _NO_XDEV)
    for attempt in range(_ATTEMPTS):
        try:
            return _checked(_libc.syscall(_OPENAT2, directory, name, how, _HOW.size))
        except OSError as error:
            if error.errno not in (errno.EAGAIN, errno.EINTR) or attempt == _ATTEMPTS - 1:
                raise
    raise AssertionError


def reopen(held: int, flags: int) -> int:
    """Return what `held` holds, opened. A regular file or a directory: the caller has looked."""
    return os.open(place(held), flags | os.O_NOCTTY | os.O_NONBLOCK | os.O_CLOEXEC)


def place(held: int) -> str:
    """Return a path that leads to the very file that is held (of a link: to the link), for calls that know
    paths only."""
    return f"/proc/self/fd/{held}"


def chown(held: int, uid: int, gid: int) -> None:
    _checked(_libc.fchownat(held, b"", uid & 0xFFFF_FFFF, gid & 0xFFFF_FFFF, _EMPTY_PATH))


def kill_privileges(fd: int) -> None:
    """Take away what a write by an ordinary writer takes away: the set-user-ID bit, and set-group-ID of a program."""
    mode = os.fstat(fd).st_mode
    kept = mode & ~stat.S_ISUID
    if mode & stat.S_IXGRP:
        kept &= ~stat.S_ISGID
    if kept != mode:
        os.chmod(place(fd), stat.S_IMODE(kept))


def set_times(held: int, accessed: tuple[int, int], modified: tuple[int, int]) -> None:
    """Seconds and nanoseconds each; UTIME_NOW and UTIME_OMIT in place of nanoseconds."""
    times = _TIMES.pack(*accessed, *modified)
    _checked(_libc.utimensat(-100, place(held).encode(), times, 0))


def rename(old: int, old_name: bytes, new: int, new_name: bytes, flags: int) -> None:
    _checked(_libc.renameat2(old, old_name, new, new_name, flags))


def allocate(fd: int, mode: int, offset: int, length: int) -> None:
    _checked(_libc.fallocate(fd, mode, offset, length))
