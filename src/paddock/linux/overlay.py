"""Overlays from descriptors of their layers, on kernels old and new (Documentation/filesystems/overlayfs.rst).

Layers are descriptors since Linux 6.13, single paths since 6.5, and one text before. Before 6.15 a layer may not lie on
a detached mount (fs/namespace.c, clone_private_mount).
"""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from contextlib import suppress

from paddock.linux import mounts
from paddock.linux.mounts import Option
from paddock.linux.syscall import call

_DIRECTORY = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC


def mount(
    lower: Sequence[int], upper: int | None, work: int | None, options: Sequence[Option] = (), attributes: int = 0
) -> int:
    """Return a detached overlay, topmost lower layer first.

    Raises OSError, EINVAL also for causes other than the layers.
    """
    above: list[Option] = [("upperdir", upper), ("workdir", work)] if upper is not None and work is not None else []
    rest = (*above, *options)
    try:
        return mounts.fs_mount("overlay", [*(("lowerdir+", fd) for fd in lower), *rest], attributes)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
    joined = ":".join(f"/proc/self/fd/{fd}" for fd in lower)
    return mounts.fs_mount("overlay", [("lowerdir", joined), *rest], attributes)


def mount_volatile(
    lower: Sequence[int],
    upper: int,
    work: int,
    options: Sequence[Option] = (),
    attributes: int = 0,
    *,
    file_system: int,
) -> int:
    """Mount an overlay without syncs.

    `file_system`: any open file or directory beside its layers.

    The kernel refuses one (EIO) while it has an unreported writeback error, such as of a full disk (overlayfs.rst,
    Volatile mount). syncfs(2) consumes that error. A lasting one comes back.
    """
    options = (("volatile", None), *options)
    try:
        return mount(lower, upper, work, options, attributes)
    except OSError as error:
        if error.errno != errno.EIO:
            raise
    with suppress(OSError):
        call("syncfs", file_system)
    return mount(lower, upper, work, options, attributes)


def takes_detached_layers() -> bool:
    """Tell whether this kernel accepts layers on a detached mount. Needs the right to mount. It leaves no mount."""
    scratch = mounts.fs_mount("tmpfs")
    layers: list[int] = []
    try:
        for name in ("a", "b"):
            os.mkdir(name, dir_fd=scratch)
            layers.append(os.open(name, _DIRECTORY, dir_fd=scratch))
        os.close(mount(layers, None, None))
        return True
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        return False
    finally:
        for fd in (*layers, scratch):
            os.close(fd)
