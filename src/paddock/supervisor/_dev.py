"""Build the /dev that all sandboxes share: a few devices on one small file system that none of them can write.

A level that needs another device gets a separate one.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Mapping

from paddock.linux import mounts
from paddock.linux.descriptors import closing

_DEVICES = {"null": (1, 3), "zero": (1, 5), "full": (1, 7), "random": (1, 8), "urandom": (1, 9), "tty": (5, 0)}
_MORE = {"kvm": (10, 232)}
CERTIFICATES, CERTIFICATES_JAVA = "ca-certificates.pem", "ca-certificates.jks"
CERTIFICATES_CHROMIUM = "ca-certificates.json"
"""Empty files. `_trust_places` mounts others over them."""
_DIRECTORIES = ("pts", "shm")
_LINKS = {
    "ptmx": "pts/ptmx",
    "fd": "/proc/self/fd",
    "stdin": "/proc/self/fd/0",
    "stdout": "/proc/self/fd/1",
    "stderr": "/proc/self/fd/2",
}
_FLAGS = mounts.RDONLY | mounts.NOSUID | mounts.NOEXEC


def build(place: bytes, *, root_mode: bool, more: tuple[str, ...] = ()) -> None:
    """Mount it at `place` in this mount namespace, with `more` devices of the host.

    As root the devices are new nodes, so that a sandbox needs one mount. Otherwise they are bind mounts of the host's
    nodes, because a user namespace can't create nodes.
    """
    with closing(mounts.fs_mount("tmpfs", (("mode", "0755"), ("size", "64k")), 0)) as fd:
        mounts.move_mount(fd, mounts.AT_FDCWD, place)
        mask = os.umask(0)
        try:
            _fill(fd, place, root_mode, _DEVICES | {name: _MORE[name] for name in more})
        finally:
            os.umask(mask)
        mounts.set_attributes(fd, set=_FLAGS, recursive=False)


def make(place: bytes, *, root_mode: bool, more: tuple[str, ...]) -> int:
    """Return a detached /dev for a single sandbox; `place` is mounted on meanwhile. Raises OSError if the host lacks a
    device."""
    for name in more:
        info = os.stat(b"/dev/" + name.encode())
        if not stat.S_ISCHR(info.st_mode) or info.st_rdev != os.makedev(*_MORE[name]):
            raise OSError(errno.ENODEV, f"/dev/{name} is not what it should be")
    build(place, root_mode=root_mode, more=more)
    try:
        return mounts.open_tree(place, recursive=not root_mode)
    finally:
        mounts.umount(place, detach=True)


def _fill(fd: int, place: bytes, root_mode: bool, devices: Mapping[str, tuple[int, int]]) -> None:
    for name, (major, minor) in devices.items():
        if root_mode:
            os.mknod(name, stat.S_IFCHR | 0o666, os.makedev(major, minor), dir_fd=fd)
        else:
            os.close(os.open(name, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o666, dir_fd=fd))
            node = place + b"/" + name.encode()
            mounts.bind(b"/dev/" + name.encode(), mounts.AT_FDCWD, node, attributes=mounts.NOSUID | mounts.NOEXEC)
    for name in (CERTIFICATES, CERTIFICATES_JAVA, CERTIFICATES_CHROMIUM):
        os.close(os.open(name, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o444, dir_fd=fd))
    for name in _DIRECTORIES:
        os.mkdir(name, 0o755, dir_fd=fd)
    for name, target in _LINKS.items():
        os.symlink(target, name, dir_fd=fd)
