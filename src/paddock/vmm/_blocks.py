"""A view as a read-only block device: the protocol of network block devices, for one untrusted client.

Protocol: https://github.com/NetworkBlockDevice/nbd/blob/master/doc/proto.md (fixed newstyle, simple replies). QEMU is
the client, and a hostile virtual machine may have chosen its requests.
"""

from __future__ import annotations

import errno
import mmap
import os
import socket
import struct
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Generator

from paddock.linux.descriptors import closing

from ._loop import Loop
from ._peer import Peer

# The table of a view (`_erofs`): a head, then extents by their first block, then paths.
BLOCK = 4096
HEAD = struct.Struct("<8sIIQ")
EXTENT = struct.Struct("<IIQQQ")  # first block, place of the path, bytes, mtime (ns), inode
TABLE_MAGIC = b"pdkview1"

_HAVE_OPTION = b"IHAVEOPT"
_GREETING = struct.pack(">8s8sH", b"NBDMAGIC", _HAVE_OPTION, 0b11)  # fixed newstyle, no zeroes
_OPTION = struct.Struct(">8sII")
_OPTION_REPLY = struct.Struct(">QIII")
_OPTION_MAGIC = 0x0003E889045565A9
_REQUEST = struct.Struct(">IHHQQI")
_REPLY = struct.Struct(">IIQ")
_REQUEST_MAGIC, _REPLY_MAGIC = 0x25609513, 0x67446698
_ABORT, _INFO, _GO = 2, 6, 7
_ACK, _IS_INFO, _UNSUPPORTED = 1, 3, (1 << 31) + 1
_READ_ONLY = 0b11  # has flags, read only
_READ = 0
_LARGEST_OPTION = 4096
_LARGEST_READ = 32 << 20
_WAITING = 64 << 20
_OPEN_FILES = 64


class FileChanged(OSError):
    """A file has changed since the view's creation."""


class View:
    """Reads the device that `_erofs` described. Files stay open for a while."""

    def __init__(self, metadata: str, table: str) -> None:
        self._metadata = os.open(metadata, os.O_RDONLY | os.O_CLOEXEC)
        with closing(os.open(table, os.O_RDONLY | os.O_CLOEXEC)) as fd:
            self._table = mmap.mmap(fd, 0, prot=mmap.PROT_READ)
        magic, self._count, self._first, self._end = HEAD.unpack_from(self._table)
        if magic != TABLE_MAGIC:
            raise ValueError("not the table of a view")
        self._open: OrderedDict[int, int] = OrderedDict()

    @property
    def size(self) -> int:
        return self._end * BLOCK

    def read(self, offset: int, length: int) -> bytes:
        """Read a part of the device. Raises OSError if a file is unreadable, or has changed."""
        parts: list[bytes] = []
        while length:
            data = self._some(offset, length)
            parts.append(data)
            offset += len(data)
            length -= len(data)
        return b"".join(parts)

    def _some(self, offset: int, length: int) -> bytes:
        boundary = self._first * BLOCK
        if offset < boundary:
            length = min(length, boundary - offset)
            return os.pread(self._metadata, length, offset).ljust(length, b"\0")
        number = self._find(offset // BLOCK)
        start, place, size, mtime_ns, _ = self._extent(number)
        within = offset - start * BLOCK
        length = min(length, -(-size // BLOCK) * BLOCK - within)
        data = os.pread(self._file(number, place, size, mtime_ns), length, within)
        if len(data) != max(0, min(length, size - within)):
            raise FileChanged(errno.EIO, "cut short")
        return data.ljust(length, b"\0")

    def _extent(self, number: int) -> tuple[int, int, int, int, int]:
        return EXTENT.unpack_from(self._table, HEAD.size + number * EXTENT.size)

    def _find(self, block: int) -> int:
        return max(0, bisect_right(range(self._count), block, key=lambda number: self._extent(number)[0]) - 1)

    def _file(self, number: int, place: int, size: int, mtime_ns: int) -> int:
        fd = self._open.get(number)
        if fd is not None:
            self._open.move_to_end(number)
            return fd
        at = HEAD.size + self._count * EXTENT.size + place
        path = self._table[at : self._table.find(b"\0", at)]
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
        info = os.fstat(fd)
        if (info.st_size, info.st_mtime_ns) != (size, mtime_ns):
            os.close(fd)
            raise FileChanged(errno.EIO, "changed since the view was made")
        self._open[number] = fd
        if len(self._open) > _OPEN_FILES:
            os.close(self._open.popitem(last=False)[1])
        return fd


class BlockServer:
    """Serves `view` over `stream` until the other side leaves or breaks the protocol."""

    def __init__(self, loop: Loop, stream: socket.socket, view: View) -> None:
        self._view = view
        self._received = bytearray()
        self._conversation = self._serve()
        self._wanted = next(self._conversation)
        self._peer = Peer(loop, stream, self._heard, lambda: None, self._go_on, high=_WAITING)
        self._peer.send(_GREETING)
        self._peer.listen(True)

    def _heard(self, data: bytes) -> None:
        self._received += data
        self._go_on()

    def _go_on(self) -> None:
        """Answer requests as long as the client takes the answers."""
        try:
            while not self._peer.closed and not self._peer.full and len(self._received) >= self._wanted:
                data = bytes(self._received[: self._wanted])
                del self._received[: self._wanted]
                self._wanted = self._conversation.send(data)
        except (OSError, ValueError):
            self._peer.close()
        self._peer.listen(not self._peer.full)

    def _say(self, *parts: bytes) -> None:
        for part in filter(None, parts):
            self._peer.send(part)

    def _serve(self) -> Generator[int, bytes, None]:
        """Yield how many bytes have to come next. Raises ValueError if the client leaves, or breaks the protocol."""
        yield 4  # its flags
        option = 0
        while option != _GO:
            magic, option, length = _OPTION.unpack((yield _OPTION.size))
            if magic != _HAVE_OPTION or length > _LARGEST_OPTION or option == _ABORT:
                raise ValueError("no option")
            yield length
            if option in (_INFO, _GO):
                self._say(
                    _OPTION_REPLY.pack(_OPTION_MAGIC, option, _IS_INFO, 12),
                    struct.pack(">HQH", 0, self._view.size, _READ_ONLY),
                    _OPTION_REPLY.pack(_OPTION_MAGIC, option, _ACK, 0),
                )
            else:
                self._say(_OPTION_REPLY.pack(_OPTION_MAGIC, option, _UNSUPPORTED, 0))
        while True:
            magic, _, kind, cookie, offset, length = _REQUEST.unpack((yield _REQUEST.size))
            if magic != _REQUEST_MAGIC or kind != _READ:
                raise ValueError("no read")  # a client that writes to what it was told is read-only, or that leaves
            error, data = 0, b""
            if length > _LARGEST_READ or offset + length > self._view.size:
                error = errno.EINVAL
            else:
                try:
                    data = self._view.read(offset, length)
                except OSError:
                    error = errno.EIO
            self._say(_REPLY.pack(_REPLY_MAGIC, error, cookie), data)
