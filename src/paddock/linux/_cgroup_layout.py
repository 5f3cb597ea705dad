"""Finds this machine's cgroup hierarchies, the caller's place in them (cgroups(7)), and delegated places in the version
2 tree.

Facts: Documentation/admin-guide/cgroup-v2.rst, "Delegation" and "No Internal Process Constraint".
"""

from __future__ import annotations

import errno
import os
import time
from contextlib import suppress
from pathlib import PurePosixPath
from typing import Literal, NamedTuple

from paddock.linux import kernel_files, mountinfo

# The controllers that paddock uses. `cpuacct` counts processor time only without a unified tree.
WANTED = ("memory", "pids", "cpu", "freezer", "cpuacct")


class Hierarchy(NamedTuple):
    """One mounted tree.

    `own` is the directory of the caller's own cgroup in it, `path` its name in /proc/self/cgroup.

    `top` is the mount point. Version 2 has `controllers` empty.
    """

    version: Literal[1, 2]
    controllers: frozenset[str]
    own: str
    path: str
    top: str


def detect(wanted: tuple[str, ...] = WANTED) -> list[Hierarchy]:
    """Return the hierarchies of this machine that hold the caller and that are of use."""
    return parse(mountinfo.read(fstype="cgroup"), kernel_files.read("/proc/self/cgroup"), wanted)


def parse(mounts: list[mountinfo.MountInfo], membership: bytes, wanted: tuple[str, ...] = WANTED) -> list[Hierarchy]:
    """Find the hierarchies like `detect`, from the content of /proc/self/mountinfo and /proc/self/cgroup."""
    own_paths = paths(membership)
    found: dict[str, Hierarchy] = {}
    for mount in mounts:
        version = 2 if mount.fstype == "cgroup2" else 1
        controllers = mount.super_options.intersection(wanted)
        key = "" if version == 2 else min(controllers, default="none")
        own = _directory(mount, own_paths[key]) if key in own_paths and key not in found else None
        if own is not None:
            top = mount.mount_point.decode(errors="surrogateescape")
            found[key] = Hierarchy(version, controllers, own, own_paths[key], top)
    return list(found.values())


def paths(membership: bytes) -> dict[str, str]:
    """Return the content of /proc/<pid>/cgroup by controller, that of the unified tree by ""."""
    found: dict[str, str] = {}
    for line in membership.decode(errors="surrogateescape").splitlines():
        _, controllers, path = line.split(":", 2)
        for controller in controllers.split(","):
            found[controller] = path
    return found


def _directory(mount: mountinfo.MountInfo, path: str) -> str | None:
    """Return the directory of cgroup `path`, or None if this mount's part of the tree doesn't contain it."""
    root = mount.root.decode(errors="surrogateescape").rstrip("/")
    if "/.." in path or not f"{path}/".startswith(f"{root}/"):
        return None
    return mount.mount_point.decode(errors="surrogateescape") + path.removeprefix(root).rstrip("/")


_ENDING_SECONDS = 1.0
ADVICE = "start paddock in a group of its own (systemd-run --user --scope -p Delegate=yes)"


def delegated(
    own: str, top: str, name: str, wanted: frozenset[str], missing: dict[str, str]
) -> tuple[str, frozenset[str]]:
    """Make `<place>/<name>` with as many of the controllers as possible, and return its path and controllers.

    Raises OSError.

    `place` is a delegated cgroup: the caller's own one or one above it, up to `top`. It is the nearest of those that
    offer the most. A cgroup other than the root's has either processes or enabled controllers. So a caller that is
    alone in its own one moves into the leaf `<name>.self`. With other processes there, it leaves all in place.
    """
    places = _places(own, top) if wanted else []
    if not places:
        reason = f"others run in {own}" if os.access(own, os.W_OK) else f"{own} is not delegated to this user"
        missing.update((c, f"{c}: {reason}, and nothing above it is; {ADVICE}") for c in wanted & _controllers(own))
    offers = {place: wanted & _controllers(place) for place in places}
    place = max(places, key=lambda place: len(offers[place]), default=own)
    offered = offers.get(place, frozenset[str]())
    path = f"{place}/{name}"
    make_directory(path)
    if offered and place == own and not _is_root(own):
        make_directory(f"{own}/{name}.self")
        kernel_files.write(f"{own}/{name}.self/cgroup.procs", b"0")
    return path, _enable(place, path, offered, missing)


def _places(own: str, top: str) -> list[str]:
    """Return the places for groups with controllers, nearest first."""
    places = [own] if _is_delegated(own) and (_is_root(own) or _alone(own)) else []
    for parent in map(str, PurePosixPath(own).parents):
        if not parent.startswith(top):
            break
        if _is_delegated(parent) and (_is_root(parent) or not kernel_files.read(f"{parent}/cgroup.procs")):
            places.append(parent)
    return places


def _is_root(cgroup: str) -> bool:
    """Tell whether this is the root of the machine's whole tree, which alone may have both."""
    return not os.path.exists(f"{cgroup}/cgroup.type")


def _alone(cgroup: str) -> bool:
    return not set(kernel_files.read(f"{cgroup}/cgroup.procs").split()) - {b"%d" % os.getpid()}


def _is_delegated(cgroup: str) -> bool:
    """Tell whether the files that cgroup-v2.rst names are writable."""
    return all(os.access(f"{cgroup}/{name}", os.W_OK) for name in ("", "cgroup.procs", "cgroup.subtree_control"))


def _controllers(cgroup: str) -> frozenset[str]:
    return frozenset(kernel_files.read(f"{cgroup}/cgroup.controllers").decode().split())


def _enable(place: str, path: str, controllers: frozenset[str], missing: dict[str, str]) -> frozenset[str]:
    enabled: set[str] = set()
    for controller in controllers:
        try:
            _enable_one(place, controller)
            _enable_one(path, controller)
            enabled.add(controller)
        except OSError as error:
            missing[controller] = f"{controller}: {error.strerror} at {place}/cgroup.subtree_control; {ADVICE}"
    return frozenset(enabled)


def _enable_one(place: str, controller: str) -> None:
    """Enable a controller. A process that is just ending is in no list any more and yet keeps the cgroup busy for a
    moment."""
    deadline = time.monotonic() + _ENDING_SECONDS
    while True:
        try:
            kernel_files.write(f"{place}/cgroup.subtree_control", b"+" + controller.encode())
            return
        except OSError as error:
            if error.errno != errno.EBUSY or time.monotonic() > deadline or not _alone(place):
                raise
        time.sleep(0.005)


def make_directory(path: str) -> None:
    """Make a cgroup that may exist already."""
    with suppress(FileExistsError):
        os.mkdir(path, 0o755)
