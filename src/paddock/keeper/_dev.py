"""The /dev that all sandboxes share: a handful of devices on one small file system that none of them can write."""

from __future__ import annotations

import os
import stat

from paddock.linux import mounts

_DEVICES = {"null": (1, 3), "zero": (1, 5), "full": (1, 7), "random": (1, 8), "urandom": (1, 9), "tty": (5, 0)}
CERTIFICATES, CERTIFICATES_JAVA = "ca-certificates.pem", "ca-certificates.jks"
CERTIFICATES_CHROMIUM = "ca-certificates.json"
"""Empty files, over which `_trust_places` puts others."""
_DIRECTORIES = ("pts", "shm")
_LINKS = {
    "ptmx": "pts/ptmx",
    "fd": "/proc/self/fd",
    "stdin": "/proc/self/fd/0",
    "stdout": "/proc/self/fd/1",
    "stderr": "/proc/self/fd/2",
}
_FLAGS = mounts.RDONLY | mounts.NOSUID | mounts.NOEXEC


def build(place: bytes, *, root_mode: bool) -> None:
    """Mounts it at `place` in this mount namespace.

    With root's powers the devices are nodes of its own, so that a sandbox gets one mount; without,
    they are bind mounts of the host's nodes, since a user namespace may make none.
    """
    fd = mounts.fs_mount("tmpfs", (("mode", "0755"), ("size", "64k")), 0)
    try:
        mounts.move_mount(fd, mounts.AT_FDCWD, place)
        mask = os.umask(0)
        try:
            _fill(fd, place, root_mode)
        finally:
            os.umask(mask)
        mounts.set_attributes(fd, set=_FLAGS, recursive=False)
    finally:
        os.close(fd)


def _fill(fd: int, place: bytes, root_mode: bool) -> None:
    for name, (major, minor) in _DEVICES.items():
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
