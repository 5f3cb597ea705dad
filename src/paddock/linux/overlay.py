"""Overlays from descriptors of their layers, on kernels old and new (Documentation/filesystems/overlayfs.rst).

Since Linux 6.13 layers are handed over as descriptors, since 6.5 one by one as paths, before that as one text. Before
6.15 a layer may not lie on a detached mount (fs/namespace.c, clone_private_mount).
"""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from contextlib import suppress

from paddock.linux import mounts
from paddock.linux._syscall import call
from paddock.linux.mounts import Option

_DIRECTORY = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC


def mount(
    lower: Sequence[int], upper: int | None, work: int | None, options: Sequence[Option] = (), attributes: int = 0
) -> int:
    """Return a detached overlay, topmost lower layer first. OSError, EINVAL also for what is not the layers' fault."""
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
    """Mount an overlay of which nothing is synced. `file_system`: any open file or directory beside its layers.

    The kernel refuses one (EIO) while it has an error of writing back, such as of a disk that was full, which it has
    told to no program yet (overlayfs.rst, Volatile mount). syncfs(2) takes that error; one that lasts comes back.
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
    """Whether this kernel takes layers that lie on a detached mount. Needs the power to mount; leaves nothing."""
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
