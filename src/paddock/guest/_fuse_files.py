"""What the other kernel asks of files, done on the files of the exports. It may be an attacker's.

Every name is one component, found below a descriptor that we hold; nothing is followed, no other file system entered.
Requests never wait for anybody: locks are the other kernel's own affair, special files are never opened.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import struct

from . import _fuse_wire as wire
from ._fuse_calls import UTIME_NOW, UTIME_OMIT, chown, hold, kill_privileges, place, rename, set_times
from ._fuse_nodes import Node, Nodes
from ._fuse_wire import Request

_HEAD, _TAIL = struct.Struct("=II6Q3I"), struct.Struct("=4I4x")  # of SETATTR
_MKNOD, _MKDIR, _LINK, _RENAME, _RENAME2 = (struct.Struct(form) for form in ("=4I", "=II", "=Q", "=Q", "=QII"))
_SETXATTR, _GETXATTR = struct.Struct("=II"), struct.Struct("=II")
_WORD, _WIDE = struct.Struct("=II"), struct.Struct("=Q")

_MODE, _UID, _GID, _SIZE, _ATIME, _MTIME = (1 << bit for bit in range(6))  # FATTR_*
_ATIME_NOW, _MTIME_NOW, _KILL = 1 << 7, 1 << 8, 1 << 11
_KEEP = 0xFFFF_FFFF  # an owner that stays
_EXCHANGE, _NOREPLACE = 1 << 1, 1 << 0
_MOST_XATTR = 65536
_MOST_OFFSET = (1 << 63) - 1


class Files:
    def __init__(self, nodes: Nodes) -> None:
        self._nodes = nodes
        self._may_give = os.geteuid() == 0

    # names

    def lookup(self, request: Request) -> bytes:
        parent = self._directory(request.node)
        name = _component(request.names(0, 1)[0])
        try:
            held = hold(self._nodes.held(parent), name, across=parent.export.across)
        except FileNotFoundError:
            if parent.export.shared:
                raise
            return wire.no_entry(parent.export.seconds)
        return self.entry(parent, name, held)

    def entry(self, parent: Node, name: bytes, held: int) -> bytes:
        node, status = self._nodes.enter(parent, name, held)
        return wire.entry(node.number, status, wire.number(status.st_ino, node.export.index), node.export.seconds)

    def getattr(self, request: Request) -> bytes:
        return self._attributes(self._nodes.node(request.node))

    def _attributes(self, node: Node) -> bytes:
        status = self._nodes.status(node)
        return wire.attributes_reply(status, wire.number(status.st_ino, node.export.index), node.export.seconds)

    def readlink(self, request: Request) -> bytes:
        node = self._nodes.node(request.node)
        if node.kind != stat.S_IFLNK:
            raise OSError(errno.EINVAL, "not a link")
        return os.readlink(b"", dir_fd=self._nodes.held(node))

    # making

    def mknod(self, request: Request) -> bytes:
        mode = request.take(_MKNOD)[0]
        parent, name = self._target(request.node, request.names(_MKNOD.size, 1)[0])
        directory, kind = self._nodes.held(parent), stat.S_IFMT(mode)
        if kind not in (stat.S_IFREG, stat.S_IFIFO, stat.S_IFSOCK):
            raise PermissionError(errno.EPERM, "a device")
        if kind != stat.S_IFREG:
            os.mknod(name, mode & ~0o7000, dir_fd=directory)
            return self._made(request, parent, name, mode)
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        fd = os.open(name, flags, mode & 0o777, dir_fd=directory)
        try:
            reply = self._made(request, parent, name, mode)
        except OSError:
            os.close(fd)
            raise
        # Whoever makes a file writes to it next.
        node = self._nodes.node(_WIDE.unpack_from(reply)[0])
        self._nodes.close_data(node)
        self._nodes.set_data(node, fd, writable=True)
        return reply

    def mkdir(self, request: Request) -> bytes:
        mode = request.take(_MKDIR)[0] & 0o7777
        parent, name = self._target(request.node, request.names(_MKDIR.size, 1)[0])
        os.mkdir(name, mode & 0o777, dir_fd=self._nodes.held(parent))
        return self._made(request, parent, name, mode | stat.S_IFDIR)

    def symlink(self, request: Request) -> bytes:
        given, target = request.names(0, 2)
        parent, name = self._target(request.node, given)
        os.symlink(target, name, dir_fd=self._nodes.held(parent))
        return self._made(request, parent, name, stat.S_IFLNK)

    def _made(self, request: Request, parent: Node, name: bytes, mode: int) -> bytes:
        """Gives what was just made to whom it shall belong, or takes it away again."""
        directory = self._nodes.held(parent)
        held = hold(directory, name, across=parent.export.across)
        try:
            above = os.fstat(directory)
            gid = above.st_gid if above.st_mode & stat.S_ISGID else request.gid
            if above.st_mode & stat.S_ISGID and stat.S_ISDIR(mode):
                mode |= stat.S_ISGID
            self._give(held, request.uid, gid)
            if mode & 0o7000 and not stat.S_ISLNK(mode):
                os.chmod(place(held), mode & 0o7777)
        except OSError:
            os.close(held)
            with contextlib.suppress(OSError):
                (os.rmdir if stat.S_ISDIR(mode) else os.unlink)(name, dir_fd=directory)
            raise
        return self.entry(parent, name, held)

    def _give(self, held: int, uid: int, gid: int) -> None:
        status = os.fstat(held)
        if (status.st_uid, status.st_gid) == (uid, gid):
            return
        try:
            chown(held, uid, gid)
        except PermissionError:
            if self._may_give:
                raise
            # An ordinary user has one uid on the host: all that is made is his, whoever makes it in there.

    def link(self, request: Request) -> bytes:
        (old,) = request.take(_LINK)
        parent, name = self._target(request.node, request.names(_LINK.size, 1)[0])
        node = self._nodes.node(old)
        if node.export is not parent.export:
            raise OSError(errno.EXDEV, "another export")
        with self._both(node, parent) as (source, directory):
            os.link(place(source), name, dst_dir_fd=directory, follow_symlinks=True)
        return self.entry(parent, name, hold(self._nodes.held(parent), name, across=parent.export.across))

    # taking away, moving

    def unlink(self, request: Request) -> bytes:
        parent, name = self._target(request.node, request.names(0, 1)[0])
        going = self._known(parent, name)
        if going is not None:
            self._nodes.keep_nameless(going)
        try:
            os.unlink(name, dir_fd=self._nodes.held(parent))
        except OSError:
            if going is not None:
                self._nodes.named(going)
            raise
        self._gone(going, parent, name)
        return b""

    def rmdir(self, request: Request) -> bytes:
        parent, name = self._target(request.node, request.names(0, 1)[0])
        going = self._known(parent, name)
        if going is not None:
            self._nodes.keep_nameless(going)
        try:
            os.rmdir(name, dir_fd=self._nodes.held(parent))
        except OSError:
            if going is not None:
                self._nodes.named(going)
            raise
        self._gone(going, parent, name)
        return b""

    def _known(self, parent: Node, name: bytes) -> Node | None:
        """The node of what is there, if the other kernel knows it."""
        try:
            held = self._nodes.held(parent)
            status = os.stat(name, dir_fd=held, follow_symlinks=False)
        except FileNotFoundError:
            return None
        return self._nodes.by_key.get(parent.export.key(held, status))

    def _gone(self, node: Node | None, parent: Node, name: bytes) -> None:
        """`name` does not lead to it any more. If that was not the name that it is found by, nothing has changed."""
        if node is None:
            return
        if node.name == name and node.parent is parent:
            node.name = None
        else:
            self._nodes.named(node)

    def rename(self, request: Request) -> bytes:
        (target,) = request.take(_RENAME)
        return self._rename(request, target, 0, _RENAME.size)

    def rename2(self, request: Request) -> bytes:
        target, flags, _ = request.take(_RENAME2)
        return self._rename(request, target, flags, _RENAME2.size)

    def _rename(self, request: Request, target: int, flags: int, offset: int) -> bytes:
        if flags not in (0, _NOREPLACE, _EXCHANGE):  # no RENAME_WHITEOUT: it makes a device
            raise OSError(errno.EINVAL, "such a rename")
        first, second = request.names(offset, 2)
        (old, old_name), (new, new_name) = self._target(request.node, first), self._target(target, second)
        if old.export is not new.export:
            raise OSError(errno.EXDEV, "another export")
        moving, replaced = self._known(old, old_name), self._known(new, new_name)
        if moving is replaced:
            replaced = None  # two names of one file: rename(2) does nothing
        if replaced is not None and not flags:
            self._nodes.keep_nameless(replaced)
        try:
            with self._both(old, new) as (here, there):
                rename(here, old_name, there, new_name, flags)
        except OSError:
            if replaced is not None:
                self._nodes.named(replaced)
            raise
        if flags == _EXCHANGE:
            self._moved(replaced, old, old_name)
        else:
            self._gone(replaced, new, new_name)
        self._moved(moving, new, new_name)
        return b""

    def _moved(self, node: Node | None, parent: Node, name: bytes) -> None:
        """If it is there now: of two names of one file neither has moved."""
        if node is not None and self._known(parent, name) is node:
            node.parent, node.name = parent, name
            self._nodes.named(node)

    @contextlib.contextmanager
    def _both(self, one: Node, other: Node):
        """Descriptors of two nodes that are valid at once."""
        first = os.dup(self._nodes.held(one))
        try:
            yield first, self._nodes.held(other)
        finally:
            os.close(first)

    # attributes

    def setattr(self, request: Request) -> bytes:
        valid, _, _, size, _, atime, mtime, _, atimensec, mtimensec, _ = request.take(_HEAD)
        mode, _, uid, gid = request.take(_TAIL, _HEAD.size)
        node = self._writable(request.node)
        if valid & _SIZE:
            if size > _MOST_OFFSET:
                raise OSError(errno.EFBIG, "so large a file")
            os.ftruncate(self._nodes.data(node, write=True), size)
        held = self._nodes.held(node)
        if valid & (_UID | _GID):
            chown(held, uid if valid & _UID else _KEEP, gid if valid & _GID else _KEEP)
        if valid & _MODE:
            os.chmod(place(held), mode & 0o7777)
        elif valid & _KILL:
            kill_privileges(held)
        if valid & (_ATIME | _MTIME | _ATIME_NOW | _MTIME_NOW):
            set_times(
                held,
                _time(bool(valid & _ATIME), bool(valid & _ATIME_NOW), atime, atimensec),
                _time(bool(valid & _MTIME), bool(valid & _MTIME_NOW), mtime, mtimensec),
            )
        return self._attributes(node)

    def setxattr(self, request: Request) -> bytes:
        size, flags = request.take(_SETXATTR)
        node = self._writable(request.node)
        name, rest = _attribute(request, _SETXATTR.size)
        if size != len(rest) or size > _MOST_XATTR:
            raise OSError(errno.EINVAL, "a value of another length")
        os.setxattr(place(self._nodes.held(node)), name, rest, flags & 3)
        return b""

    def getxattr(self, request: Request) -> bytes:
        (size, _), node = request.take(_GETXATTR), self._nodes.node(request.node)
        name, _ = _attribute(request, _GETXATTR.size, reading=True)
        return _sized(os.getxattr(place(self._nodes.held(node)), name), size)

    def listxattr(self, request: Request) -> bytes:
        (size, _), node = request.take(_GETXATTR), self._nodes.node(request.node)
        names = [os.fsencode(name) for name in os.listxattr(place(self._nodes.held(node)))]
        return _sized(b"".join(name + b"\0" for name in names if _ours(name)), size)

    def removexattr(self, request: Request) -> bytes:
        node = self._writable(request.node)
        name, _ = _attribute(request, 0)
        os.removexattr(place(self._nodes.held(node)), name)
        return b""

    def statfs(self, request: Request) -> bytes:
        return wire.statfs_reply(os.fstatvfs(self._nodes.held(self._nodes.node(request.node))))

    # who may

    def _directory(self, number: int) -> Node:
        node = self._nodes.node(number)
        if node.kind != stat.S_IFDIR:
            raise NotADirectoryError(errno.ENOTDIR, "not a directory")
        return node

    def _target(self, number: int, name: bytes) -> tuple[Node, bytes]:
        """A name in a directory that may be written to."""
        node = self._directory(number)
        if not node.export.writable:
            raise OSError(errno.EROFS, "read-only")
        return node, _component(name)

    def _writable(self, number: int) -> Node:
        node = self._nodes.node(number)
        if not node.export.writable:
            raise OSError(errno.EROFS, "read-only")
        return node


def _component(name: bytes) -> bytes:
    if not name or name in (b".", b"..") or b"/" in name:
        raise OSError(errno.EINVAL, "not a name")
    if len(name) > wire.MAX_NAME:
        raise OSError(errno.ENAMETOOLONG, "a long name")
    return name


def _time(given: bool, now: bool, seconds: int, nanoseconds: int) -> tuple[int, int]:
    if now:
        return 0, UTIME_NOW
    if not given:
        return 0, UTIME_OMIT
    return struct.unpack("=q", struct.pack("=Q", seconds))[0], min(nanoseconds, 10**9 - 1)


def _ours(name: bytes) -> bool:
    """Names that mean nothing to a kernel: those of overlayfs and of security modules stay out of reach."""
    return name.startswith(b"user.") and not name.startswith(b"user.overlay.")


def _attribute(request: Request, offset: int, *, reading: bool = False) -> tuple[bytes, bytes]:
    name, _, rest = bytes(request.body[offset:]).partition(b"\0")
    if not _ours(name):
        raise OSError(errno.ENODATA if reading else errno.EOPNOTSUPP, "not a user's attribute")
    return name, rest


def _sized(value: bytes, size: int) -> bytes:
    if size == 0:
        return _WORD.pack(len(value), 0)
    if len(value) > size:
        raise OSError(errno.ERANGE, "longer than that")
    return value
