"""Directories, read in pieces.

A place in one is made of the name before it, so that entries which come and go meanwhile move no other: each that was
there all the time is shown once, however long somebody keeps a place.
"""

from __future__ import annotations

import errno
import os
import stat
import struct
from binascii import crc32
from bisect import bisect_right
from collections import OrderedDict

from . import _fuse_wire as wire
from ._fuse_calls import hold
from ._fuse_files import Files
from ._fuse_nodes import Node, Nodes
from ._fuse_wire import Request

MAX_ENTRIES = 1 << 20
_REMEMBERED = 16
_READDIR = struct.Struct("=QQIIQII")
_ITSELF, _ABOVE = 1, 2  # the places behind "." and ".."

Listing = list[tuple[int, bytes, int, int]]  # place behind it, name, number, type


class Listings:
    def __init__(self, nodes: Nodes, files: Files) -> None:
        self._nodes, self._files = nodes, files
        self._recent: OrderedDict[int, Listing] = OrderedDict()

    def read(self, request: Request, *, plus: bool) -> bytes:
        _, offset, size, *_ = request.take(_READDIR)
        node = self._nodes.node(request.node)
        if node.kind != stat.S_IFDIR:
            raise NotADirectoryError(errno.ENOTDIR, "not a directory")
        listing = self._listing(node, fresh=offset == 0)
        out, room = bytearray(), min(size, wire.MAX_DATA)
        for at in range(bisect_right(listing, (offset, b"\xff" * 256, 0, 0)), len(listing)):
            place, name, ino, kind = listing[at]
            record = wire.directory_entry(name, ino, kind, place)
            if len(out) + len(record) + (wire.ENTRY_BYTES if plus else 0) > room:
                break
            if plus:
                out += self._entry(node, name)
            out += record
        return bytes(out)

    def _entry(self, parent: Node, name: bytes) -> bytes:
        """As LOOKUP would have said; of what can't be looked up now, only the name is shown."""
        if name in (b".", b"..") or self._nodes.full:
            return wire.no_entry(0)
        try:
            held = hold(self._nodes.held(parent), name, across=parent.export.across)
            return self._files.entry(parent, name, held)
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
        # Opened for this alone: btrfs shows no more entries than there were when a descriptor was opened or rewound.
        fd = self._nodes.listed(node)
        try:
            return _entries(fd, node.export.index)
        finally:
            os.close(fd)

    def forget(self) -> None:
        self._recent.clear()


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
    """63 bits, above those of "." and "..". Two names with one place would have to be made so, on purpose."""
    return max((crc32(name) << 31 | crc32(name[::-1], 1) >> 1) & (1 << 63) - 1, _ABOVE + 1)


def _kind(entry: os.DirEntry[str]) -> int:
    if entry.is_symlink():
        return stat.S_IFLNK
    if entry.is_dir(follow_symlinks=False):
        return stat.S_IFDIR
    return stat.S_IFREG if entry.is_file(follow_symlinks=False) else 0
