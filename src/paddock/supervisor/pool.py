"""Open the pool in the supervisor's own mount namespace: the host sees no mount, and none outlives the supervisor.

The supervisor alone does this: a file system mounted twice from two loop devices over one image is destroyed.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Mapping
from pathlib import Path

from paddock.linux import btrfs, loop, mounts, namespaces, overlay
from paddock.linux.descriptors import closing
from paddock.supervisor.layout import POOL, POOL_IMAGE, SUPERVISOR_CONFIG

_OPTIONS: tuple[mounts.Option, ...] = (("discard", "async"),)  # what is deleted becomes a hole in the image
_ATTRIBUTES = mounts.NOSUID | mounts.NODEV | mounts.NOATIME
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_CLEARING_SECONDS = 5.0


def open_pool(state_dir: str, pool: Mapping[str, object]) -> int:
    """Return the pool's directory, as a descriptor. `pool` is the member "pool" of supervisor.json.

    An image gets mounted at `<state_dir>/pool` in the mount namespace of the caller, which must be private, with quotas
    on. Raises OSError.
    """
    directory = os.open(os.path.join(state_dir, POOL), _DIRECTORY)
    image = pool.get("image")
    if image is None:
        return directory
    with closing(directory):
        if image != POOL_IMAGE:
            raise ValueError(f"supervisor.json names another image than {POOL_IMAGE}: {image!r}")
        with closing(mount_image(os.path.join(state_dir, POOL_IMAGE))) as mount:
            mounts.move_mount(mount, directory)
            return os.open(".", _DIRECTORY, dir_fd=mount)


def mount_image(path: str) -> int:
    """Return a detached mount of the image, quotas on; over the loop device of an earlier supervisor, if its sandboxes
    hold it."""
    # From looking for a device to mounting a new one. Not on `file`: the device would hold that open, and so locked.
    lock = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    file = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        device = _existing(file) or loop.attach(file)
        with closing(device.fd):
            mount = mounts.fs_mount("btrfs", (("source", device.path), *_OPTIONS), _ATTRIBUTES)
    finally:
        os.close(file)
        os.close(lock)
    try:
        with closing(os.open(".", _DIRECTORY, dir_fd=mount)) as directory:
            btrfs.enable_quota(directory)
    except BaseException:
        os.close(mount)
        raise
    return mount


def _existing(file: int) -> loop.LoopDevice | None:
    """Return the existing device over this image, held open; wait for one that is being cleared."""
    deadline = time.monotonic() + _CLEARING_SECONDS
    while found := loop.find(file):
        fd = os.open(found[0], os.O_RDWR | os.O_CLOEXEC)
        if found[0] in loop.find(file):  # not cleared between looking and opening; now it cannot be
            return loop.LoopDevice(fd, found[0])
        os.close(fd)
        if time.monotonic() > deadline:
            raise TimeoutError(f"{os.fsdecode(found[0])} comes and goes over the pool's image")
    return None


def try_overlay(directory: str) -> None:
    """Mount an overlay over directories made in the empty `directory`, detached. Raises OSError if that fails.

    An ordinary user enters a new user namespace for that, so call it in a separate process.
    """
    user = os.geteuid()
    if user != 0:
        namespaces.unshare_as(0, namespaces.NEWNS)
    opened = [os.open(directory, _DIRECTORY)]
    try:
        for layer in ("lower", "upper", "work"):
            os.mkdir(layer, dir_fd=opened[0])
            opened.append(os.open(layer, _DIRECTORY, dir_fd=opened[0]))
        place, lower, upper, work = opened
        options: tuple[mounts.Option, ...] = (("userxattr", None),) if user else ()
        os.close(overlay.mount_volatile([lower], upper, work, options, file_system=place))
    finally:
        for fd in opened:
            os.close(fd)


def try_pool(state_dir: str, supervisor: int) -> None:
    """Mount an overlay in the pool, as the process `supervisor` does for each sandbox. Raises OSError if that fails
    now.

    It leaves nothing behind. The caller ends up in other namespaces.
    """
    from shutil import rmtree

    if os.geteuid() == 0:
        namespace = os.open(f"/proc/{supervisor}/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
        namespaces.setns(namespace, namespaces.NEWNS)
        os.close(namespace)
    config = json.loads(Path(state_dir, SUPERVISOR_CONFIG).read_bytes())
    if config["pool"]["driver"] == "copy":
        return
    directory = Path(state_dir, POOL, f".making-{os.urandom(8).hex()}")
    directory.mkdir()
    try:
        try_overlay(str(directory))
    finally:
        rmtree(directory)
