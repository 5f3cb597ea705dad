"""Where this machine's cgroup hierarchies are mounted and where in them the caller is (cgroups(7))."""

from __future__ import annotations

import posixpath
from typing import Literal, NamedTuple

from paddock.linux import _files, mountinfo

# Those that paddock has a use for. `cpuacct` serves only where no unified tree counts processor time.
WANTED = ("memory", "pids", "cpu", "freezer", "cpuacct")


class Hierarchy(NamedTuple):
    """One mounted tree; `own` is the directory of the caller's own cgroup in it, `path` its name in /proc/self/cgroup.

    `top` is where the tree is mounted. Version 2 has `controllers` empty.
    """

    version: Literal[1, 2]
    controllers: frozenset[str]
    own: str
    path: str
    top: str


def detect(wanted: tuple[str, ...] = WANTED) -> list[Hierarchy]:
    """The hierarchies of this machine that hold the caller and that are of use."""
    return parse(mountinfo.read(fstype="cgroup"), _files.read("/proc/self/cgroup"), wanted)


def parse(mounts: list[mountinfo.MountInfo], membership: bytes, wanted: tuple[str, ...] = WANTED) -> list[Hierarchy]:
    """As `detect`, from the content of /proc/self/mountinfo and /proc/self/cgroup."""
    own_paths = paths(membership)
    found: list[Hierarchy] = []
    taken: set[str] = set()
    for mount in mounts:
        if mount.fstype == "cgroup2":
            version, controllers = 2, frozenset[str]()
            key = ""
        elif mount.fstype == "cgroup":
            version, controllers = 1, mount.super_options.intersection(wanted)
            key = min(controllers, default="none")
        else:
            continue
        own = _directory(mount, own_paths[key]) if key in own_paths and key not in taken else None
        if own is not None:
            taken.add(key)
            top = mount.mount_point.decode(errors="surrogateescape")
            found.append(Hierarchy(version, controllers, own, own_paths[key], top))
    return found


def paths(membership: bytes) -> dict[str, str]:
    """The content of /proc/<pid>/cgroup by controller, that of the unified tree by ""."""
    found: dict[str, str] = {}
    for line in membership.decode(errors="surrogateescape").splitlines():
        _, controllers, path = line.split(":", 2)
        for controller in controllers.split(","):
            found[controller] = path
    return found


def _directory(mount: mountinfo.MountInfo, path: str) -> str | None:
    """The directory of cgroup `path`; None if this mount shows a part of the tree that does not hold it."""
    root = mount.root.decode(errors="surrogateescape")
    if root == "/" and path.startswith("/") and "/.." not in path:
        return mount.mount_point.decode(errors="surrogateescape") + path.rstrip("/")
    relative = posixpath.relpath(path, root) if path.startswith("/") and root.startswith("/") else ".."
    if relative == ".." or relative.startswith("../"):
        return None
    return posixpath.normpath(posixpath.join(mount.mount_point.decode(errors="surrogateescape"), relative))
