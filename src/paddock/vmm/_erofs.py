"""A view: the metadata of a read-only EROFS for directories elsewhere, and a table of the places of its blocks.

A virtual machine sees a block device with the metadata, and after it the files, block by block. `_blocks` reads a file
from its place when the machine asks for it. So this copies nothing, for a tree of any size. Format: Linux,
fs/erofs/erofs_fs.h (6.1): extended inodes, plain layout, with inline links and small directories.
"""

from __future__ import annotations

import os
import stat
import struct
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple

from ._blocks import BLOCK, EXTENT, HEAD, TABLE_MAGIC
from ._machine_files import MachineFiles
from .control import Json

if TYPE_CHECKING:
    from .controller import Controller

_MAGIC = 0xE0F5E1E2
_SLOT = 32
_INODE = struct.Struct("<HHHHQIIIIQII16x")
_ENTRY = struct.Struct("<QHBB")
_EXTENDED, _PLAIN, _INLINE = 1, 0 << 1, 2 << 1
_FIRST_SLOT = (1024 + 128) // _SLOT  # behind the superblock
_TYPES = {
    stat.S_IFREG: 1,
    stat.S_IFDIR: 2,
    stat.S_IFIFO: 5,
    stat.S_IFSOCK: 6,
    stat.S_IFLNK: 7,
}


class Source(NamedTuple):
    """The directory `place` of this machine, at `path` of the view, without the names `without` at its top.

    `owners` maps paths of the view to the owners of the files below, longest path first. None: the files' own.
    """

    place: str
    path: str
    without: Collection[str] = ()
    owners: Mapping[str, tuple[int, int]] | None = None


@dataclass(slots=True)
class _Node:
    path: str
    mode: int
    uid: int
    gid: int
    size: int
    mtime_ns: int
    links: int = 1
    slot: int = 0
    block: int = 0xFFFFFFFF
    inline: bytes = b""
    real_inode: int = 0
    place: str = ""
    children: dict[bytes, _Node] = field(default_factory=dict[bytes, "_Node"])


def make_disks(controller: Controller, files: MachineFiles, wanted: Any) -> None:
    """Make the disks of a machine that boots: the view of its template, and an empty disk.

    `wanted`: `sources` of the view, `disk_bytes`, and `format`, a command that makes a file system in a file. Raises
    OSError.
    """
    os.makedirs(files.path(""), exist_ok=True)
    sources = tuple(Source(**source) for source in wanted["sources"])
    with open(files.path("view"), "wb") as metadata, open(files.path("table"), "wb") as table:
        write_view(sources, metadata, table)
    with open(files.path("disk"), "wb") as file:
        file.truncate(wanted["disk_bytes"])
    command: Json = {"argv": [*wanted["format"], files.path("disk")], "streams": {}}
    _, status = os.waitpid(controller.spawn(command, {}), 0)
    if status != 0:
        raise OSError("no disk was made")


def write_view(sources: tuple[Source, ...], metadata: BinaryIO, table: BinaryIO) -> int:
    """Write metadata and table, and return the length of the device in bytes.

    A later source replaces an earlier one at its path.
    """
    root = _read(sources)
    nodes = list(_unique(root))
    block = _lay_out(nodes)
    block = _place_directories(nodes, block)
    files = [node for node in nodes if stat.S_ISREG(node.mode) and node.size]
    end = block
    for node in files:
        node.block = end
        end += -(-node.size // BLOCK)
    _write_metadata(root, nodes, metadata, block, end)
    _write_table(files, table, block, end)
    return end * BLOCK


def _read(sources: tuple[Source, ...]) -> _Node:
    seen: dict[tuple[int, int], _Node] = {}
    root = _node(os.lstat(sources[0].place), sources[0], "/", sources[0].place, seen)
    for source in sources:
        top = root
        for name in filter(None, source.path.split("/")):
            fresh = _node(os.lstat(source.place), source, source.path, source.place, {})
            top = top.children.setdefault(os.fsencode(name), fresh)
        top.children = {n: top.children[n] for n in map(os.fsencode, source.without) if n in top.children}
        _descend(source, source.place, source.path.rstrip("/"), top, seen, source.without)
    return root


def _descend(
    source: Source,
    place: str,
    path: str,
    into: _Node,
    seen: dict[tuple[int, int], _Node],
    without: Collection[str] = (),
) -> None:
    try:
        entries = list(os.scandir(place))
    except PermissionError:
        return  # as little as any user may see of it
    for entry in entries:
        if entry.name in without:
            continue
        info = entry.stat(follow_symlinks=False)
        if stat.S_IFMT(info.st_mode) not in _TYPES:
            continue
        child = _node(info, source, f"{path}/{entry.name}", entry.path, seen)
        into.children[os.fsencode(entry.name)] = child
        if stat.S_ISDIR(info.st_mode):
            _descend(source, entry.path, child.path, child, seen)


def _node(info: os.stat_result, source: Source, path: str, place: str, seen: dict[tuple[int, int], _Node]) -> _Node:
    shared = info.st_nlink > 1 and not stat.S_ISDIR(info.st_mode)
    key = (info.st_dev, info.st_ino)
    if shared and key in seen:
        seen[key].links += 1
        return seen[key]
    uid, gid = _owner(info, source, path)
    node = _Node(path, info.st_mode, uid, gid, info.st_size, info.st_mtime_ns, real_inode=info.st_ino, place=place)
    if stat.S_ISLNK(info.st_mode):
        node.inline = os.fsencode(os.readlink(place))
        node.size = len(node.inline)
    elif not stat.S_ISREG(info.st_mode):
        node.size = 0
    if shared:
        seen[key] = node
    return node


def _owner(info: os.stat_result, source: Source, path: str) -> tuple[int, int]:
    if source.owners is not None:
        for above, owner in source.owners.items():
            if path == above or path.startswith(above.rstrip("/") + "/"):
                return owner
    return info.st_uid, info.st_gid


def _unique(root: _Node) -> Iterator[_Node]:
    """Each once, the root first."""
    seen: set[int] = set()
    pending = [root]
    while pending:
        node = pending.pop()
        if id(node) in seen:
            continue
        seen.add(id(node))
        yield node
        pending.extend(node.children.values())


def _lay_out(nodes: list[_Node]) -> int:
    """Assign a slot to every inode, and return the first block after them.

    Inline data lies in the block of its inode.
    """
    offset = _FIRST_SLOT * _SLOT
    for node in nodes:
        inline = len(node.inline)
        if stat.S_ISDIR(node.mode):
            size = _directory_size(node)
            inline = size if size <= BLOCK - _INODE.size else 0
        need = _INODE.size + inline
        if offset % BLOCK + need > BLOCK:
            offset += -offset % BLOCK
        node.slot = offset // _SLOT
        offset += need + -need % _SLOT
    return -(-offset // BLOCK)


def _names(node: _Node) -> list[bytes]:
    return sorted([b".", b"..", *node.children])


def _directory_size(node: _Node) -> int:
    return sum(len(name) + _ENTRY.size for name in (b".", b"..", *node.children))


def _place_directories(nodes: list[_Node], block: int) -> int:
    """Fill in the content of directories. Large ones get separate blocks."""
    parents: dict[int, _Node] = {}
    for node in nodes:
        for child in node.children.values():
            parents[id(child)] = node
    for node in nodes:
        if stat.S_ISDIR(node.mode):
            blocks = _pack(node, parents.get(id(node), node))
            node.links = 2 + sum(stat.S_ISDIR(child.mode) for child in node.children.values())
            if len(blocks) == 1 and len(blocks[0]) <= BLOCK - _INODE.size:
                node.inline, node.size = blocks[0], len(blocks[0])
            else:
                node.block, node.size = block, (len(blocks) - 1) * BLOCK + len(blocks[-1])
                node.inline = b"".join(data.ljust(BLOCK, b"\0") for data in blocks)
                block += len(blocks)
    return block


def _pack(node: _Node, parent: _Node) -> list[bytes]:
    """Pack a directory's entries, sorted by name over all blocks. A block has its entries first, then its names."""
    blocks: list[bytes] = []
    names: list[bytes] = []
    used = 0
    for name in [*_names(node), None]:
        need = 0 if name is None else len(name) + _ENTRY.size
        if name is None or used + need > BLOCK:
            blocks.append(_pack_block(names, node, parent))
            names, used = [], 0
        if name is not None:
            names.append(name)
            used += need
    return blocks


def _pack_block(names: list[bytes], node: _Node, parent: _Node) -> bytes:
    special = {b".": node, b"..": parent}
    offset = len(names) * _ENTRY.size
    entries: list[bytes] = []
    for name in names:
        child = special.get(name) or node.children[name]
        entries.append(_ENTRY.pack(child.slot, offset, _TYPES[stat.S_IFMT(child.mode)], 0))
        offset += len(name)
    return b"".join(entries) + b"".join(names)


def _write_metadata(root: _Node, nodes: list[_Node], file: BinaryIO, blocks: int, end: int) -> None:
    file.truncate(blocks * BLOCK)
    file.seek(1024)
    file.write(_superblock(root.slot, len(nodes), end))
    for number, node in enumerate(nodes):
        inline = node.block == 0xFFFFFFFF and bool(node.inline)
        head = _INODE.pack(
            _EXTENDED | (_INLINE if inline else _PLAIN),
            0,
            node.mode,
            0,
            node.size,
            node.block,
            number + 1,
            node.uid,
            node.gid,
            node.mtime_ns // 1_000_000_000,
            node.mtime_ns % 1_000_000_000,
            node.links,
        )
        file.seek(node.slot * _SLOT)
        file.write(head + node.inline if inline else head)
        if node.inline and not inline:
            file.seek(node.block * BLOCK)
            file.write(node.inline)


def _superblock(root: int, inodes: int, blocks: int) -> bytes:
    head = struct.pack("<IIIBBHQQIIII", _MAGIC, 0, 0, 12, 0, root, inodes, 0, 0, blocks & 0xFFFFFFFF, 0, 0)
    return head.ljust(128, b"\0")


def _write_table(files: list[_Node], table: BinaryIO, first: int, end: int) -> None:
    paths = bytearray()
    extents = bytearray()
    for node in files:
        extents += EXTENT.pack(node.block, len(paths), node.size, node.mtime_ns, node.real_inode)
        paths += os.fsencode(node.place) + b"\0"
    table.write(HEAD.pack(TABLE_MAGIC, len(files), first, end) + extents + paths)
