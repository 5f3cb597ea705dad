"""One session of another kernel with our files: it answers one request at a time.

Requests may be an attacker's.

Every name is one component, found below a descriptor of ours. It follows no link and enters no other file system.
Requests never wait for another process: locks stay in the guest's kernel, and this never opens special files. It keeps
no open files: a request names the file, and the session reopens it.

It reads directories in pieces. A position in one is a hash of the name before it, so changes of other entries don't
shift it. An entry that exists during the whole listing appears once, however long the reader pauses.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import struct
from binascii import crc32
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable

from paddock.linux.descriptors import closing

from . import _fuse_wire as wire
from ._fuse_nodes import (
    UTIME_NOW,
    UTIME_OMIT,
    Node,
    Nodes,
    allocate,
    kill_privileges,
    open_path,
    proc_path,
    rename,
    set_times,
)
from ._fuse_wire import Request
from ._loop import report

_FIRST_ERRNO, _LAST_ERRNO = 1, 133
_HEAD, _TAIL = struct.Struct("=II6Q3I"), struct.Struct("=4I4x")  # of SETATTR
_MKNOD, _MKDIR, _LINK, _RENAME, _RENAME2 = (struct.Struct(form) for form in ("=4I", "=II", "=Q", "=Q", "=QII"))
_SETXATTR, _GETXATTR = struct.Struct("=II"), struct.Struct("=II")
_WORD, _WIDE = struct.Struct("=II"), struct.Struct("=Q")

_MODE, _UID, _GID, _SIZE, _ATIME, _MTIME = (1 << bit for bit in range(6))  # FATTR_*
_ATIME_NOW, _MTIME_NOW, _KILL = 1 << 7, 1 << 8, 1 << 11
_EXCHANGE, _NOREPLACE = 1 << 1, 1 << 0
_MOST_XATTR = 65536
_MOST_OFFSET = (1 << 63) - 1
_READ, _FSYNC = struct.Struct("=QQIIQII"), struct.Struct("=QII")
_FALLOCATE, _LSEEK, _COPY = (struct.Struct(form) for form in ("=QQQII", "=QQII", "=7Q"))
_WRITE_KILL = 1 << 2
_ALLOCATE_MODES = 0x7F & ~0x04  # all that fallocate(2) knows but FALLOC_FL_NO_HIDE_STALE, which shows old bytes
_MOST_COPIED = 16 << 20  # in one request: a short answer is asked on
MAX_ENTRIES = 1 << 20
_REMEMBERED = 16
_ITSELF, _ABOVE = 1, 2  # the places behind "." and ".."

_OPERATIONS = (
    *("init", "lookup", "getattr", "setattr", "readlink", "statfs", "fsync", "fsyncdir", "readdir", "readdirplus"),
    *("symlink", "mknod", "mkdir", "link", "unlink", "rmdir", "rename", "rename2", "read", "write", "lseek"),
    *("setxattr", "getxattr", "listxattr", "removexattr", "fallocate", "copy_file_range"),
)
"""Methods of a session that answer the operation of that name in `_fuse_wire`."""
Listing = list[tuple[int, bytes, int, int]]  # place behind it, name, number, type


class Session:
    def __init__(self, nodes: Nodes) -> None:
        self._nodes = nodes
        self._may_set_owner = os.geteuid() == 0
        self._recent: OrderedDict[int, Listing] = OrderedDict()
        self._operations: dict[int, Callable[[Request], bytes]] = {
            getattr(wire, name.upper()): getattr(self, name) for name in _OPERATIONS
        }
        self._top: dict[int, Callable[[Request], bytes]] = {
            wire.LOOKUP: self._find_export,
            wire.GETATTR: lambda _: wire.top_attributes(),
            wire.STATFS: lambda _: wire.statfs_reply(os.statvfs("/")),
        }

    def handle(self, message: memoryview) -> bytes:
        """Return the answer, or b"" for requests without one. Raises BadMessage if it can't address an answer."""
        request = wire.parse(message)
        if request.opcode in wire.UNANSWERED:
            self._forget(request)
            return b""
        try:
            # For an operation outside the table, ENOSYS makes the kernel proceed alone. These are above all open and
            # close (`FUSE_NO_OPEN_SUPPORT`), so the server has no open files that a fork could lose.
            operation = self._operation(request)
            return wire.answer(request.unique, operation(request))
        except OSError as error:
            number = error.errno if error.errno is not None else errno.EIO
            return wire.refusal(request.unique, number if _FIRST_ERRNO <= number <= _LAST_ERRNO else errno.EIO)
        except (ValueError, OverflowError, MemoryError) as error:  # a number or a name that no call of the kernel takes
            return wire.refusal(request.unique, errno.ENOMEM if isinstance(error, MemoryError) else errno.EINVAL)
        except Exception as error:
            report(error)
            return wire.refusal(request.unique, errno.EIO)

    def _operation(self, request: Request) -> Callable[[Request], bytes]:
        operation = self._operations.get(request.opcode)
        if operation is None:
            raise OSError(errno.ENOSYS, "not done here")
        if request.node == wire.ROOT and request.opcode != wire.INIT:
            operation = self._top.get(request.opcode)
            if operation is None:
                raise PermissionError(errno.EPERM, "nothing can be done to the list of exports")
        return operation

    def init(self, request: Request) -> bytes:
        answer = wire.greeting(request, shared=any(export.shared for export in self._nodes.exports))
        self._recent.clear()  # a peer that greets again knows nothing of before
        self._nodes.forget_all()
        return answer

    def _forget(self, request: Request) -> None:
        if request.opcode == wire.FORGET:
            forgotten = [(request.node, *_numbers(request.body[:8]))] if len(request.body) >= 8 else []
        else:
            numbers = _numbers(request.body[8 : len(request.body) & ~15 | 8])
            forgotten = list(zip(numbers[::2], numbers[1::2], strict=False))
        for number, lookups in forgotten:
            self._nodes.forget(number, lookups)

    def _find_export(self, request: Request) -> bytes:
        node = self._nodes.roots.get(request.names(0, 1)[0])
        if node is None:
            raise FileNotFoundError(errno.ENOENT, "no such export")
        node.lookups += 1
        status = self._nodes.status(node)
        return wire.entry(node.number, status, wire.number(status.st_ino, node.export.index), node.export.seconds)

    # names

    def lookup(self, request: Request) -> bytes:
        parent = self._directory(request.node)
        name = _component(request.names(0, 1)[0])
        try:
            return self._look_up(parent, name)
        except FileNotFoundError:
            if parent.export.shared:
                raise
            return wire.no_entry(parent.export.seconds)

    def _look_up(self, parent: Node, name: bytes) -> bytes:
        return self.entry(parent, name, open_path(self._nodes.fd(parent), name, across=parent.export.across))

    def entry(self, parent: Node, name: bytes, fd: int) -> bytes:
        node, status = self._nodes.look_up(parent, name, fd)
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
        return os.readlink(b"", dir_fd=self._nodes.fd(node))

    # making

    def mknod(self, request: Request) -> bytes:
        mode = request.take(_MKNOD)[0]
        parent, name = self._target(request.node, request.names(_MKNOD.size, 1)[0])
        directory, kind = self._nodes.fd(parent), stat.S_IFMT(mode)
        if kind not in (stat.S_IFREG, stat.S_IFIFO, stat.S_IFSOCK):
            raise PermissionError(errno.EPERM, "a device")
        if kind != stat.S_IFREG:
            os.mknod(name, mode & ~0o7000, dir_fd=directory)
            return self._finish_new(request, parent, name, mode)
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        fd = os.open(name, flags, mode & 0o777, dir_fd=directory)
        try:
            reply = self._finish_new(request, parent, name, mode)
        except OSError:
            os.close(fd)
            raise
        # A program that creates a file writes to it next.
        node = self._nodes.node(_WIDE.unpack_from(reply)[0])
        self._nodes.close_data(node)
        self._nodes.set_data(node, fd, writable=True)
        return reply

    def mkdir(self, request: Request) -> bytes:
        mode = request.take(_MKDIR)[0] & 0o7777
        parent, name = self._target(request.node, request.names(_MKDIR.size, 1)[0])
        os.mkdir(name, mode & 0o777, dir_fd=self._nodes.fd(parent))
        return self._finish_new(request, parent, name, mode | stat.S_IFDIR)

    def symlink(self, request: Request) -> bytes:
        given, target = request.names(0, 2)
        parent, name = self._target(request.node, given)
        os.symlink(target, name, dir_fd=self._nodes.fd(parent))
        return self._finish_new(request, parent, name, stat.S_IFLNK)

    def _finish_new(self, request: Request, parent: Node, name: bytes, mode: int) -> bytes:
        """Set the owner of a new file. If that fails, remove the file again."""
        directory = self._nodes.fd(parent)
        fd = open_path(directory, name, across=parent.export.across)
        try:
            above = os.fstat(directory)
            gid = above.st_gid if above.st_mode & stat.S_ISGID else request.gid
            if above.st_mode & stat.S_ISGID and stat.S_ISDIR(mode):
                mode |= stat.S_ISGID
            self._set_owner(fd, request.uid, gid)
            if mode & 0o7000 and not stat.S_ISLNK(mode):
                os.chmod(proc_path(fd), mode & 0o7777)
        except OSError:
            os.close(fd)
            with contextlib.suppress(OSError):
                (os.rmdir if stat.S_ISDIR(mode) else os.unlink)(name, dir_fd=directory)
            raise
        return self.entry(parent, name, fd)

    def _set_owner(self, fd: int, uid: int, gid: int) -> None:
        status = os.fstat(fd)
        if (status.st_uid, status.st_gid) == (uid, gid):
            return
        try:
            os.chown(proc_path(fd), uid, gid)
        except PermissionError:
            if self._may_set_owner:
                raise
            # An ordinary user has one uid on the host, which owns all new files, of any uid inside.

    def link(self, request: Request) -> bytes:
        (old,) = request.take(_LINK)
        parent, name = self._target(request.node, request.names(_LINK.size, 1)[0])
        node = self._nodes.node(old)
        if node.export is not parent.export:
            raise OSError(errno.EXDEV, "another export")
        with self._both_fds(node, parent) as (source, directory):
            os.link(proc_path(source), name, dst_dir_fd=directory, follow_symlinks=True)
        return self._look_up(parent, name)

    # removing, moving

    def unlink(self, request: Request) -> bytes:
        return self._remove(request, os.unlink)

    def rmdir(self, request: Request) -> bytes:
        return self._remove(request, os.rmdir)

    def _remove(self, request: Request, call: Callable[..., None]) -> bytes:
        parent, name = self._target(request.node, request.names(0, 1)[0])
        removed = self._known_node(parent, name)
        if removed is not None:
            self._nodes.mark_nameless(removed)
        try:
            call(name, dir_fd=self._nodes.fd(parent))
        except OSError:
            if removed is not None:
                self._nodes.unmark_nameless(removed)
            raise
        self._removed(removed, parent, name)
        return b""

    def _known_node(self, parent: Node, name: bytes) -> Node | None:
        """Return the node of the file there, if the guest's kernel knows it."""
        try:
            fd = self._nodes.fd(parent)
            status = os.stat(name, dir_fd=fd, follow_symlinks=False)
        except FileNotFoundError:
            return None
        return self._nodes.by_key.get(parent.export.key(fd, status))

    def _removed(self, node: Node | None, parent: Node, name: bytes) -> None:
        """Note that `name` doesn't lead to the file any more. If the node has another name, nothing changes."""
        if node is None:
            return
        if node.name == name and node.parent is parent:
            node.name = None
        else:
            self._nodes.unmark_nameless(node)

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
        moving, replaced = self._known_node(old, old_name), self._known_node(new, new_name)
        if moving is replaced:
            replaced = None  # two names of one file: rename(2) does nothing
        if replaced is not None and not flags:
            self._nodes.mark_nameless(replaced)
        try:
            with self._both_fds(old, new) as (old_fd, new_fd):
                rename(old_fd, old_name, new_fd, new_name, flags)
        except OSError:
            if replaced is not None:
                self._nodes.unmark_nameless(replaced)
            raise
        if flags == _EXCHANGE:
            self._moved(replaced, old, old_name)
        else:
            self._removed(replaced, new, new_name)
        self._moved(moving, new, new_name)
        return b""

    def _moved(self, node: Node | None, parent: Node, name: bytes) -> None:
        """Note a rename, if the file is there now: with two names of one file, neither has moved."""
        if node is not None and self._known_node(parent, name) is node:
            node.parent, node.name = parent, name
            self._nodes.unmark_nameless(node)

    @contextlib.contextmanager
    def _both_fds(self, first: Node, second: Node):
        """Descriptors of two nodes, both valid while the block runs."""
        with closing(os.dup(self._nodes.fd(first))) as first_fd:
            yield first_fd, self._nodes.fd(second)

    # attributes

    def setattr(self, request: Request) -> bytes:
        valid, _, _, size, _, atime, mtime, _, atimensec, mtimensec, _ = request.take(_HEAD)
        mode, _, uid, gid = request.take(_TAIL, _HEAD.size)
        node = self._writable(request.node)
        if valid & _SIZE:
            if size > _MOST_OFFSET:
                raise OSError(errno.EFBIG, "so large a file")
            os.ftruncate(self._nodes.data_fd(node, write=True), size)
        fd = self._nodes.fd(node)
        if valid & (_UID | _GID):
            os.chown(proc_path(fd), uid if valid & _UID else -1, gid if valid & _GID else -1)
        if valid & _MODE:
            os.chmod(proc_path(fd), mode & 0o7777)
        elif valid & _KILL:
            kill_privileges(fd)
        if valid & (_ATIME | _MTIME | _ATIME_NOW | _MTIME_NOW):
            set_times(
                fd,
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
        os.setxattr(proc_path(self._nodes.fd(node)), name, rest, flags & 3)
        return b""

    def getxattr(self, request: Request) -> bytes:
        (size, _), node = request.take(_GETXATTR), self._nodes.node(request.node)
        name, _ = _attribute(request, _GETXATTR.size, reading=True)
        return _sized(os.getxattr(proc_path(self._nodes.fd(node)), name), size)

    def listxattr(self, request: Request) -> bytes:
        (size, _), node = request.take(_GETXATTR), self._nodes.node(request.node)
        names = [os.fsencode(name) for name in os.listxattr(proc_path(self._nodes.fd(node)))]
        return _sized(b"".join(name + b"\0" for name in names if _ours(name)), size)

    def removexattr(self, request: Request) -> bytes:
        node = self._writable(request.node)
        name, _ = _attribute(request, 0)
        os.removexattr(proc_path(self._nodes.fd(node)), name)
        return b""

    def statfs(self, request: Request) -> bytes:
        return wire.statfs_reply(os.fstatvfs(self._nodes.fd(self._nodes.node(request.node))))

    # permissions

    def _directory(self, number: int) -> Node:
        node = self._nodes.node(number)
        if node.kind != stat.S_IFDIR:
            raise NotADirectoryError(errno.ENOTDIR, "not a directory")
        return node

    def _target(self, number: int, name: bytes) -> tuple[Node, bytes]:
        """Return the directory and the name for a change. Raises OSError if it is read-only."""
        node = self._directory(number)
        self._writable(number)
        return node, _component(name)

    def _writable(self, number: int) -> Node:
        node = self._nodes.node(number)
        if not node.export.writable:
            raise OSError(errno.EROFS, "read-only")
        return node

    # content of files

    def read(self, request: Request) -> bytes:
        _, offset, size, *_ = request.take(_READ)
        node = self._nodes.node(request.node)
        if node.kind != stat.S_IFREG:
            raise OSError(errno.EISDIR, "not a file")
        return os.pread(self._nodes.data_fd(node, write=False), min(size, wire.MAX_DATA), _offset(offset))

    def write(self, request: Request) -> bytes:
        _, offset, size, flags, *_ = request.take(_READ)
        data = request.body[_READ.size :]
        if size != len(data):
            raise OSError(errno.EINVAL, "another length than it says")
        node = self._nodes.node(request.node)
        fd = self._nodes.data_fd(node, write=True)
        done = os.pwrite(fd, data, _offset(offset))
        if flags & _WRITE_KILL:
            kill_privileges(fd)
        return _WORD.pack(done, 0)

    def fsync(self, request: Request) -> bytes:
        _, flags, _ = request.take(_FSYNC)
        node = self._nodes.node(request.node)
        fd = node.data_fd if node.data_fd >= 0 else self._nodes.data_fd(node, write=False)
        (os.fdatasync if flags & 1 else os.fsync)(fd)
        return b""

    fsyncdir = fsync

    def fallocate(self, request: Request) -> bytes:
        _, offset, length, mode, _ = request.take(_FALLOCATE)
        if mode & ~_ALLOCATE_MODES:
            raise OSError(errno.EOPNOTSUPP, "such an allocation")
        allocate(
            self._nodes.data_fd(self._nodes.node(request.node), write=True), mode, _offset(offset), _offset(length)
        )
        return b""

    def lseek(self, request: Request) -> bytes:
        _, offset, whence, _ = request.take(_LSEEK)
        if whence not in (os.SEEK_DATA, os.SEEK_HOLE):
            raise OSError(errno.EINVAL, "another seek")
        return _WIDE.pack(
            os.lseek(self._nodes.data_fd(self._nodes.node(request.node), write=False), _offset(offset), whence)
        )

    def copy_file_range(self, request: Request) -> bytes:
        _, source_offset, target, _, target_offset, length, _ = request.take(_COPY)
        source, sink = self._nodes.node(request.node), self._nodes.node(target)
        if source.kind != stat.S_IFREG:
            raise OSError(errno.EINVAL, "not a file")
        with closing(os.dup(self._nodes.data_fd(sink, write=True))) as out:
            source_fd = self._nodes.data_fd(source, write=False)
            count, start, end = min(length, _MOST_COPIED), _offset(source_offset), _offset(target_offset)
            done = os.copy_file_range(source_fd, out, count, start, end)
        return _WORD.pack(done, 0)

    # directories

    def readdir(self, request: Request) -> bytes:
        return self._list(request, plus=False)

    def readdirplus(self, request: Request) -> bytes:
        return self._list(request, plus=True)

    def _list(self, request: Request, *, plus: bool) -> bytes:
        _, offset, size, *_ = request.take(_READ)
        node = self._directory(request.node)
        listing = self._listing(node, fresh=offset == 0)
        out, room = bytearray(), min(size, wire.MAX_DATA)
        for at in range(bisect_right(listing, (offset, b"\xff" * 256, 0, 0)), len(listing)):
            proc_path, name, ino, kind = listing[at]
            record = wire.directory_entry(name, ino, kind, proc_path)
            if len(out) + len(record) + (wire.ENTRY_BYTES if plus else 0) > room:
                break
            if plus:
                out += self._shown(node, name)
            out += record
        return bytes(out)

    def _shown(self, parent: Node, name: bytes) -> bytes:
        """Return the answer of LOOKUP, or only the name if a lookup isn't possible now."""
        if name in (b".", b"..") or self._nodes.full:
            return wire.no_entry(0)
        try:
            return self._look_up(parent, name)
        except OSError:
            return wire.no_entry(0)

    def _listing(self, node: Node, *, fresh: bool) -> Listing:
        listing = None if fresh else self._recent.get(node.number)
        if listing is None:
            listing = self._scan(node)
            self._recent[node.number] = listing
            if len(self._recent) > _REMEMBERED:
                self._recent.popitem(last=False)
        self._recent.move_to_end(node.number)
        return listing

    def _scan(self, node: Node) -> Listing:
        # A new descriptor: btrfs only shows the entries of the time when a program opened or rewound it.
        with closing(self._nodes.open_dir(node)) as fd:
            return _entries(fd, node.export.index)


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


def _offset(value: int) -> int:
    if value > _MOST_OFFSET:
        raise OSError(errno.EINVAL, "such an offset")
    return value


def _entries(fd: int, export: int) -> Listing:
    here = wire.number(os.fstat(fd).st_ino, export)
    listing: Listing = [(_ITSELF, b".", here, stat.S_IFDIR), (_ABOVE, b"..", here, stat.S_IFDIR)]
    with os.scandir(fd) as entries:
        for entry in entries:
            name = os.fsencode(entry.name)
            listing.append((_place(name), name, wire.number(entry.inode(), export), _kind(entry)))
            if len(listing) > MAX_ENTRIES:
                raise OSError(errno.EOVERFLOW, "more entries than are listed")
    listing.sort()
    return listing


def _place(name: bytes) -> int:
    """Return a position of 63 bits, above the ones of "." and "..".

    Only a deliberate attack gives two names the same.
    """
    return max((crc32(name) << 31 | crc32(name[::-1], 1) >> 1) & (1 << 63) - 1, _ABOVE + 1)


def _kind(entry: os.DirEntry[str]) -> int:
    if entry.is_symlink():
        return stat.S_IFLNK
    if entry.is_dir(follow_symlinks=False):
        return stat.S_IFDIR
    return stat.S_IFREG if entry.is_file(follow_symlinks=False) else 0


def _numbers(data: memoryview) -> tuple[int, ...]:
    return tuple(data[: len(data) & ~7].cast("Q"))
