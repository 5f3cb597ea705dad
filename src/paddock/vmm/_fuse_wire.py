"""FUSE as it goes over a wire: messages cut out of a stream, their parts taken apart and put together. No I/O.

Source: `include/uapi/linux/fuse.h` of Linux 6.1 (protocol 7.37) and `Documentation/filesystems/fuse.rst`. Every
message begins with its length, which makes a stream of them. Between the kernel's messages go ours to the relay
(`native/share.c`): eight bytes, shorter than any of FUSE: the length and a word.
"""

from __future__ import annotations

import errno
import os
import stat
import struct

MAX_DATA = 512 * 1024  # of one read or write
MAX_MESSAGE = MAX_DATA + 4096
MAX_NAME = 255
ROOT = 1

LOOKUP, FORGET, GETATTR, SETATTR, READLINK, SYMLINK = 1, 2, 3, 4, 5, 6
MKNOD, MKDIR, UNLINK, RMDIR, RENAME, LINK, READ, WRITE, STATFS = 8, 9, 10, 11, 12, 13, 15, 16, 17
FSYNC, SETXATTR, GETXATTR, LISTXATTR, REMOVEXATTR, INIT, READDIR, FSYNCDIR = 20, 21, 22, 23, 24, 26, 28, 30
BATCH_FORGET, FALLOCATE, READDIRPLUS, RENAME2, LSEEK, COPY_FILE_RANGE = 42, 43, 44, 45, 46, 47
UNANSWERED = frozenset({FORGET, BATCH_FORGET})

PAUSE, PAUSED, RESUME = 1, 2, 3  # host to relay, relay to host, host to relay

_ASYNC_READ, _BIG_WRITES, _AUTO_INVAL, _READDIRPLUS, _READDIRPLUS_AUTO = 1 << 0, 1 << 5, 1 << 12, 1 << 13, 1 << 14
_NO_OPEN, _PARALLEL_DIROPS, _MAX_PAGES, _CACHE_SYMLINKS, _NO_OPENDIR = 1 << 17, 1 << 18, 1 << 22, 1 << 23, 1 << 24
_KILLPRIV_V2 = 1 << 28
_NEEDED = _NO_OPEN | _NO_OPENDIR | _MAX_PAGES | _BIG_WRITES
_WANTED = _NEEDED | _ASYNC_READ | _READDIRPLUS | _READDIRPLUS_AUTO | _PARALLEL_DIROPS | _CACHE_SYMLINKS | _KILLPRIV_V2
_MAJOR, _MINOR, _OLDEST = 7, 36, 31
_PAGE = 4096

_IN = struct.Struct("=IIQQIIIHH")
_OUT = struct.Struct("=IiQ")
_CONTROL = struct.Struct("=II")
_LENGTH = struct.Struct("=I")
_ATTR = struct.Struct("=6Q10I")
_ENTRY = struct.Struct("=4QII")
_ATTR_OUT = struct.Struct("=QII")
_DIRENT = struct.Struct("=QQII")
_INIT_IN = struct.Struct("=IIII")
_INIT_OUT = struct.Struct("=IIIIHHIIHHI28x")
_STATFS = struct.Struct("=5Q4I24x")
ENTRY_BYTES = _ENTRY.size + _ATTR.size


class BadMessage(Exception):
    """The other side doesn't speak FUSE, so no message follows."""


class Request:
    __slots__ = ("body", "gid", "node", "opcode", "uid", "unique")

    def __init__(self, opcode: int, unique: int, node: int, uid: int, gid: int, body: memoryview) -> None:
        self.opcode, self.unique, self.node = opcode, unique, node
        self.uid, self.gid, self.body = uid, gid, body

    def take(self, form: struct.Struct, offset: int = 0) -> tuple[int, ...]:
        """Return a part of fixed length, of the beginning of the body."""
        if len(self.body) < offset + form.size:
            raise OSError(errno.EINVAL, "a message that is too short")
        return form.unpack_from(self.body, offset)

    def names(self, offset: int, count: int) -> list[bytes]:
        """Return the strings that end the body. A security context may follow, which we ignore."""
        parts = bytes(self.body[offset:]).split(b"\0", count)
        if len(parts) != count + 1:
            raise OSError(errno.EINVAL, "a name without its end")
        return parts[:count]


class Splitter:
    """Splits bytes into whole messages. It buffers at most one message and the bytes that came with it."""

    def __init__(self, smallest: int = _IN.size) -> None:
        self._smallest = smallest
        self._pending = bytearray()

    def feed(self, data: bytes | memoryview) -> list[memoryview]:
        """Return a message of ours (`word`) or of FUSE each, valid as long as `data` is. Raises BadMessage."""
        if not self._pending and len(data) >= _LENGTH.size and self._length(data, 0) == len(data):
            return [memoryview(data)]
        self._pending += data
        messages: list[memoryview] = []
        view, start = memoryview(bytes(self._pending)) if self._complete() else memoryview(b""), 0
        while len(view) - start >= _LENGTH.size:
            length = self._length(view, start)
            if len(view) - start < length:
                break
            messages.append(view[start : start + length])
            start += length
        if start:
            del self._pending[:start]
        return messages

    def _complete(self) -> bool:
        return len(self._pending) >= _LENGTH.size and len(self._pending) >= self._length(self._pending, 0)

    def _length(self, data: bytes | bytearray | memoryview, at: int) -> int:
        length: int = _LENGTH.unpack_from(data, at)[0]
        if length != _CONTROL.size and not self._smallest <= length <= MAX_MESSAGE:
            raise BadMessage(f"a message of {length} bytes")
        return length


def control_value(message: memoryview | bytes) -> int | None:
    """Return the value of our own message, or None if it is FUSE's."""
    return _CONTROL.unpack(message)[1] if len(message) == _CONTROL.size else None


def control_message(value: int) -> bytes:
    return _CONTROL.pack(_CONTROL.size, value)


def parse(message: memoryview) -> Request:
    _, opcode, unique, node, uid, gid, _, _, _ = _IN.unpack_from(message)
    return Request(opcode=opcode, unique=unique, node=node, uid=uid, gid=gid, body=message[_IN.size :])


def answer(unique: int, data: bytes = b"") -> bytes:
    return _OUT.pack(_OUT.size + len(data), 0, unique) + data


def refusal(unique: int, number: int) -> bytes:
    return _OUT.pack(_OUT.size, -number, unique)


def attributes(status: os.stat_result, ino: int) -> bytes:
    times = (status.st_atime_ns, status.st_mtime_ns, status.st_ctime_ns)
    return _ATTR.pack(
        *(ino, status.st_size, status.st_blocks),
        *(time // 10**9 & 0xFFFF_FFFF_FFFF_FFFF for time in times),
        *(time % 10**9 for time in times),
        *(status.st_mode, status.st_nlink, status.st_uid, status.st_gid, 0, _PAGE, 0),
    )


def top_attributes() -> bytes:
    """Return the attributes of the directory with the exports. Programs can only pass through it."""
    return _ATTR_OUT.pack(1, 0, 0) + _ATTR.pack(ROOT, *(0,) * 8, stat.S_IFDIR | 0o555, 2, 0, 0, 0, _PAGE, 0)


def number(ino: int, export: int) -> int:
    """Return the file's number there: all exports are one file system to the other kernel, and may number alike."""
    return ino ^ export << 56


def attributes_reply(status: os.stat_result, ino: int, seconds: int) -> bytes:
    return _ATTR_OUT.pack(seconds, 0, 0) + attributes(status, ino)


def entry(node: int, status: os.stat_result, ino: int, seconds: int) -> bytes:
    return _ENTRY.pack(node, 0, seconds, seconds, 0, 0) + attributes(status, ino)


def no_entry(seconds: int) -> bytes:
    """Return the answer that a name doesn't exist, which the kernel may cache.

    It also stands for "." and "..": no node.
    """
    return _ENTRY.pack(0, 0, seconds, 0, 0, 0) + bytes(_ATTR.size)


def directory_entry(name: bytes, ino: int, kind: int, offset: int) -> bytes:
    """Return a directory entry. `offset` is the position of the next one. `kind` is a file type as in st_mode, or 0."""
    head = _DIRENT.pack(ino, offset, len(name), kind >> 12)
    return head + name + bytes(-(len(head) + len(name)) % 8)


def greeting(request: Request, *, shared: bool) -> bytes:
    """Return the answer to INIT.

    Refuse a kernel without the needed features.

    `shared`: other programs may change the files, so the kernel drops its cache of one when its mtime changes.
    """
    major, minor, readahead, flags = request.take(_INIT_IN)
    if major != _MAJOR or minor < _OLDEST or flags & _NEEDED != _NEEDED:
        raise OSError(errno.EPROTO, "a kernel before 5.4")
    ours = flags & (_WANTED | _AUTO_INVAL if shared else _WANTED)
    pages = MAX_DATA // _PAGE
    return _INIT_OUT.pack(_MAJOR, min(minor, _MINOR), min(readahead, MAX_DATA), ours, 16, 12, MAX_DATA, 1, pages, 0, 0)


def statfs_reply(status: os.statvfs_result) -> bytes:
    return _STATFS.pack(
        *(status.f_blocks, status.f_bfree, status.f_bavail, status.f_files, status.f_ffree),
        *(status.f_bsize, min(status.f_namemax, MAX_NAME), status.f_frsize, 0),
    )
