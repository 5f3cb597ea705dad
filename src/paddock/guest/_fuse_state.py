"""What a session knows, kept beside a machine's memory and taken up by a fork's: numbers and places, no descriptors.

The fork's files are a copy of the same instant, so each place still leads to the same file. A file that was open and
had no name any more is in no copy: its content is kept here, up to a bound, and beyond that it is lost, and counted.
"""

from __future__ import annotations

import errno
import json
import os
import stat
from typing import Any

from ._fuse_nodes import Node, Nodes

_STATE = "files.json"
_MOST_STATE = 256 << 20
_MOST_ORPHANS = 1 << 30
_VERSION = 1


def save(nodes: Nodes, directory: int) -> int:
    """How many files could not be kept. Nothing must be asked for meanwhile."""
    alive = _with_parents(nodes)
    lost, left = 0, _MOST_ORPHANS
    for node in [node for node in alive if node.name is None]:
        size = _keep_orphan(node, directory, left)
        if size is None:
            lost += 1
        else:
            left -= size
    rows = [
        (
            *(node.number, node.parent.number if node.parent is not None else 0),
            *(None if node.name is None else node.name.decode("utf-8", "surrogateescape"), node.kind, node.lookups),
            *(node.export.index, 0 if node.key is None or node.key[3] else node.key[2]),
        )
        for node in alive
    ]
    state = {"version": _VERSION, "exports": [os.fsdecode(export.name) for export in nodes.exports], "nodes": rows}
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
    with os.fdopen(os.open(_STATE, flags, 0o600, dir_fd=directory), "w") as file:
        json.dump(state, file, separators=(",", ":"))
    return lost


def _with_parents(nodes: Nodes) -> list[Node]:
    """All that is known and all that leads there, parents first."""
    order: dict[int, Node] = {}
    for node in nodes.by_number.values():
        way: list[Node] = []
        above: Node | None = node
        while above is not None and above.number not in order and len(way) <= len(nodes.by_number) + 65536:
            way.append(above)
            above = above.parent if above.name is not None else None
        for one in reversed(way):
            order[one.number] = one
    return list(order.values())


def _keep_orphan(node: Node, directory: int, left: int) -> int | None:
    """Its size; None where it can't be kept."""
    if node.kind != stat.S_IFREG or node.held < 0:
        return None
    status = os.fstat(node.held)
    size = status.st_size
    if size > left:
        return None
    source = os.open(f"/proc/self/fd/{node.held}", os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
        sink = os.open(_orphan(node.number), flags, 0o600, dir_fd=directory)
        try:
            os.ftruncate(sink, size)
            os.fchown(sink, status.st_uid, status.st_gid)
            os.fchmod(sink, stat.S_IMODE(status.st_mode))
            done = 0
            while done < size and (copied := _copy(source, sink, size - done, done)):
                done += copied
        finally:
            os.close(sink)
    finally:
        os.close(source)
    return size


def _copy(source: int, sink: int, count: int, offset: int) -> int:
    """Shared on the disk, where both lie on one file system that can."""
    try:
        return os.copy_file_range(source, sink, count, offset, offset)
    except OSError as error:
        if error.errno not in (errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP):
            raise
    os.lseek(sink, offset, os.SEEK_SET)
    return os.sendfile(sink, source, offset, count)


def names(found: list[str]) -> list[str]:
    """Those of its files."""
    return [name for name in found if name.startswith("files.")]


def load(nodes: Nodes, directory: int) -> None:
    """Into nodes of the same exports that know nothing yet. OSError EINVAL if it is not for these."""
    with os.fdopen(os.open(_STATE, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory), "rb") as file:
        text = file.read(_MOST_STATE + 1)
    state: Any = json.loads(text) if len(text) <= _MOST_STATE else {}
    names = [os.fsdecode(export.name) for export in nodes.exports]
    if state.get("version") != _VERSION or state.get("exports") != names:
        raise OSError(errno.EINVAL, "the state of another session's files")
    found: dict[int, Node] = {}
    for number, parent, name, kind, lookups, export, ino in state["nodes"]:
        if parent == 0 and name is not None:
            found[number] = nodes.take_up_root(export, number, lookups)
        elif parent == 0 or name is None:
            found[number] = _take_up_orphan(nodes, directory, number, kind, lookups, export)
        else:
            encoded = name.encode("utf-8", "surrogateescape")
            found[number] = nodes.take_up(found[parent], encoded, number, kind, lookups, ino)
    os.unlink(_STATE, dir_fd=directory)


def _take_up_orphan(nodes: Nodes, directory: int, number: int, kind: int, lookups: int, export: int) -> Node:
    root = nodes.roots[nodes.exports[export].name]
    node = nodes.take_up(root, None, number, kind, lookups, 0)
    try:
        held = os.open(_orphan(number), os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory)
    except OSError:
        return node  # it was lost, and is stale
    node.held = held
    nodes.nameless[number] = node
    os.unlink(_orphan(number), dir_fd=directory)
    return node


def _orphan(number: int) -> str:
    return f"files.{number:d}"
