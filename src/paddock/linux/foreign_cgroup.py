"""The control group of a process, whoever made it: counters, and whether it stands still."""

from __future__ import annotations

import contextlib
import os
import posixpath
from collections.abc import Generator
from functools import cache

from paddock.linux import _cgroup_files as control
from paddock.linux import _cgroup_layout as layout
from paddock.linux import _files, mountinfo
from paddock.linux._cgroup_files import Tree
from paddock.linux.cgroups import Base, Group, GroupStats

_CONTROLLERS = frozenset({"memory", "pids", "cpu"})
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


def stats(pid: int) -> GroupStats:
    """None for what is not counted, or not shown here. OSError: the process is gone."""
    with _group(pid) as group:
        return group.stats()


class Refusals:
    """How often the kernel has met a process's group at its limits. Its files stay open: each exec asks."""

    _texts: tuple[bytes, ...] = ()
    _counts = (0, 0)

    def __init__(self, pid: int) -> None:
        """OSError: the process is gone, or nothing counts this here."""
        with _group(pid) as group:
            by = group.base.by_controller
            if not {"memory", "pids"} <= by.keys():
                raise FileNotFoundError(f"the group of process {pid} has no ceilings of memory and processes")
            memory = control.MEMORY_EVENTS[by["memory"].version]
            self._files: list[int] = []
            for tree, name in ((by["memory"], memory), (by["pids"], b"/pids.events")):
                self._files.append(os.open(group.name + name, os.O_RDONLY | os.O_CLOEXEC, dir_fd=tree.fd))

    def counts(self) -> tuple[int, int]:
        """Processes killed for memory, and processes refused. OSError: the group is gone."""
        texts = tuple([os.pread(file, 4096, 0) for file in self._files])
        if texts != self._texts:
            self._texts, self._counts = texts, (_number(texts[0], b"oom_kill"), _number(texts[1], b"max"))
        return self._counts

    def __del__(self) -> None:
        for file in getattr(self, "_files", ()):
            os.close(file)


def is_frozen(pid: int) -> bool:
    """Whether somebody has stopped the group (its freezer, or `cgroup.freeze`). OSError: the process is gone."""
    with _group(pid) as group:
        for tree in group.base.trees:
            file, word = (b"/cgroup.events", b"frozen 1") if tree.version == 2 else (b"/freezer.state", b"FROZEN")
            with contextlib.suppress(FileNotFoundError):
                if word in _files.read(group.name + file, tree.fd):
                    return True
    return False


@contextlib.contextmanager
def _group(pid: int) -> Generator[Group]:
    """An engine may put a container below a group of its own in one hierarchy and not in another: those are taken that
    agree with the memory's about its name, since of one name there are all or none."""
    found = layout.parse(_mounts(), _files.read(f"/proc/{pid}/cgroup"))
    main = next((h for h in found if "memory" in h.controllers), None) or next(
        (h for h in found if h.version == 2), None
    )
    if main is None:
        raise FileNotFoundError(f"no control group of process {pid} is seen here")
    name = posixpath.basename(main.own)
    bound = frozenset[str]().union(*(h.controllers for h in found if h.version == 1))
    with contextlib.ExitStack() as stack:
        trees: list[Tree] = []
        for hierarchy in found:
            above, last = posixpath.split(hierarchy.own)
            if last != name:
                continue
            fd = os.open(above, _DIRECTORY)
            stack.callback(os.close, fd)
            controllers = hierarchy.controllers if hierarchy.version == 1 else _CONTROLLERS - bound
            trees.append(Tree(hierarchy.version, fd, above, controllers))
        yield Group(Base(trees, {}), name)


@cache
def _mounts() -> list[mountinfo.MountInfo]:
    """The hierarchies are mounted at boot, and the first exec of every sandbox asks for them."""
    return mountinfo.read(fstype="cgroup")


def _number(text: bytes, key: bytes) -> int:
    words = text.split()
    return int(words[words.index(key) + 1]) if key in words else 0
