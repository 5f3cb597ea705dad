"""Reading and writing what files hold. There are no open files here: a request names the file, and that is opened again
as long as it is asked for.
"""

from __future__ import annotations

import errno
import os
import stat
import struct

from . import _fuse_wire as wire
from ._fuse_calls import allocate, kill_privileges
from ._fuse_nodes import Nodes
from ._fuse_wire import Request

_READ, _FSYNC = struct.Struct("=QQIIQII"), struct.Struct("=QII")
_FALLOCATE, _LSEEK, _COPY = (struct.Struct(form) for form in ("=QQQII", "=QQII", "=7Q"))
_WORD, _WIDE = struct.Struct("=II"), struct.Struct("=Q")
_WRITE_KILL = 1 << 2
_ALLOCATE_MODES = 0x7F & ~0x04  # all that fallocate(2) knows but FALLOC_FL_NO_HIDE_STALE, which shows old bytes
_MOST_COPIED = 16 << 20  # in one request: a short answer is asked on
_MOST_OFFSET = (1 << 63) - 1


class Data:
    def __init__(self, nodes: Nodes) -> None:
        self._nodes = nodes

    def read(self, request: Request) -> bytes:
        _, offset, size, *_ = request.take(_READ)
        node = self._nodes.node(request.node)
        if node.kind != stat.S_IFREG:
            raise OSError(errno.EISDIR, "not a file")
        return os.pread(self._nodes.data(node, write=False), min(size, wire.MAX_DATA), _offset(offset))

    def write(self, request: Request) -> bytes:
        _, offset, size, flags, *_ = request.take(_READ)
        data = request.body[_READ.size :]
        if size != len(data):
            raise OSError(errno.EINVAL, "another length than it says")
        node = self._nodes.node(request.node)
        fd = self._nodes.data(node, write=True)
        done = os.pwrite(fd, data, _offset(offset))
        if flags & _WRITE_KILL:
            kill_privileges(fd)
        return _WORD.pack(done, 0)

    def fsync(self, request: Request) -> bytes:
        _, flags, _ = request.take(_FSYNC)
        node = self._nodes.node(request.node)
        fd = node.data if node.data >= 0 else self._nodes.data(node, write=False)
        (os.fdatasync if flags & 1 else os.fsync)(fd)
        return b""

    def fallocate(self, request: Request) -> bytes:
        _, offset, length, mode, _ = request.take(_FALLOCATE)
        if mode & ~_ALLOCATE_MODES:
            raise OSError(errno.EOPNOTSUPP, "such an allocation")
        allocate(self._nodes.data(self._nodes.node(request.node), write=True), mode, _offset(offset), _offset(length))
        return b""

    def lseek(self, request: Request) -> bytes:
        _, offset, whence, _ = request.take(_LSEEK)
        if whence not in (os.SEEK_DATA, os.SEEK_HOLE):
            raise OSError(errno.EINVAL, "another seek")
        return _WIDE.pack(
            os.lseek(self._nodes.data(self._nodes.node(request.node), write=False), _offset(offset), whence)
        )

    def copy_file_range(self, request: Request) -> bytes:
        _, source_offset, target, _, target_offset, length, _ = request.take(_COPY)
        source, sink = self._nodes.node(request.node), self._nodes.node(target)
        if source.kind != stat.S_IFREG:
            raise OSError(errno.EINVAL, "not a file")
        out = os.dup(self._nodes.data(sink, write=True))
        try:
            here = self._nodes.data(source, write=False)
            done = os.copy_file_range(
                here, out, min(length, _MOST_COPIED), _offset(source_offset), _offset(target_offset)
            )
        finally:
            os.close(out)
        return _WORD.pack(done, 0)


def _offset(value: int) -> int:
    if value > _MOST_OFFSET:
        raise OSError(errno.EINVAL, "such an offset")
    return value
