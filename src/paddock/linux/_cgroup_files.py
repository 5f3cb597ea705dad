"""What the control files of both cgroup versions are called and hold.

Facts: Documentation/admin-guide/cgroup-v2.rst and cgroup-v1/{memory,pids}.rst, Documentation/scheduler/sched-bwc.rst.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from typing import NamedTuple

from paddock.linux import _files

_PERIOD = 100_000  # microseconds over which processor time is shared out


class GroupStats(NamedTuple):
    """What a group uses and how often a ceiling struck. None: not counted here."""

    memory_bytes: int | None
    memory_peak_bytes: int | None
    oom_kills: int | None
    processes: int | None
    processes_refused: int | None
    cpu_seconds: float | None


class GroupLimits(NamedTuple):
    """Ceilings; None is no ceiling. `swap_bytes` is what may be used beside `memory_bytes`.

    `socket_bytes` is what TCP and UDP may hold in buffers, in version 1, which else counts that for nobody; version 2
    counts it as memory.
    """

    memory_bytes: int | None = None
    swap_bytes: int | None = None
    pids: int | None = None
    cpus: float | None = None
    socket_bytes: int | None = None


class Tree(NamedTuple):
    """One hierarchy: descriptor and path of the directory that holds the groups, and the controllers it has.

    `name` is that path as /proc/<pid>/cgroup shows it.
    """

    version: int
    fd: int
    path: str
    controllers: frozenset[str]
    name: str = "/"


SWAP = {1: b"/memory.memsw.limit_in_bytes", 2: b"/memory.swap.max"}
SOCKETS = b"/memory.kmem.tcp.limit_in_bytes"
SOCKETS_CURRENT = b"/memory.kmem.tcp.usage_in_bytes"
MEMORY_CURRENT = {1: b"/memory.usage_in_bytes", 2: b"/memory.current"}
MEMORY_PEAK = {1: b"/memory.max_usage_in_bytes", 2: b"/memory.peak"}
MEMORY_EVENTS = {1: b"/memory.oom_control", 2: b"/memory.events"}


def writes(controller: str, version: int, limits: GroupLimits) -> Iterator[tuple[bytes, bytes]]:
    """Which files get which values in a new group, in this order: swap of version 1 includes memory and comes later.

    memory.oom.group stays 0, its default: the kernel ends one process, not all.
    """
    if controller == "memory" and limits.memory_bytes is not None:
        yield (b"/memory.limit_in_bytes" if version == 1 else b"/memory.max"), b"%d" % limits.memory_bytes
    if controller == "memory" and limits.swap_bytes is not None:
        if version == 2:
            yield SWAP[2], b"%d" % limits.swap_bytes
        elif limits.memory_bytes is not None:
            yield SWAP[1], b"%d" % (limits.memory_bytes + limits.swap_bytes)
    if controller == "memory" and limits.socket_bytes is not None and version == 1:
        yield SOCKETS, b"%d" % limits.socket_bytes
    if controller == "pids" and limits.pids is not None:
        yield b"/pids.max", b"%d" % limits.pids
    if controller == "cpu" and limits.cpus is not None:
        quota = max(1000, round(limits.cpus * _PERIOD))  # less than a millisecond is refused
        if version == 1:
            yield b"/cpu.cfs_quota_us", b"%d" % quota  # the period is 100 ms by default
        else:
            yield b"/cpu.max", b"%d %d" % (quota, _PERIOD)


def apply(tree: Tree, group: bytes, controller: str, limits: GroupLimits) -> None:
    """Sets the ceilings of one controller. Swap and sockets are left alone where the kernel has no file for them."""
    for file, value in writes(controller, tree.version, limits):
        try:
            _files.write(group + file, value, tree.fd)
        except FileNotFoundError:
            if file not in (*SWAP.values(), SOCKETS):
                raise


def limits_swap(tree: Tree) -> bool:
    """Whether groups of this memory hierarchy have a ceiling for swap."""
    return os.path.exists(os.fsencode(tree.path) + SWAP[tree.version])


def limits_sockets(tree: Tree) -> bool:
    """Whether what sockets hold in this memory hierarchy is bounded: version 2 counts it as memory."""
    return tree.version == 2 or os.path.exists(os.fsencode(tree.path) + SOCKETS)


def number(tree: Tree, file: bytes) -> int | None:
    """The one number in a file; None if there is no such file."""
    try:
        return int(_files.read(file, tree.fd))
    except FileNotFoundError:
        return None


def field(tree: Tree, file: bytes, key: bytes) -> int | None:
    """The number after `key` in a file of keys and values; None without either."""
    try:
        words = _files.read(file, tree.fd).split()
        return int(words[words.index(key) + 1])
    except (FileNotFoundError, ValueError):
        return None


def make_directory(path: str) -> None:
    """A cgroup that may exist already."""
    with suppress(FileExistsError):
        os.mkdir(path, 0o755)
