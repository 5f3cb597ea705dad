"""The sparse file of a pool: its size, its growth while in use, and the disk space that it leaves free."""

from __future__ import annotations

import fcntl
import os

from paddock.errors import ResourceExhaustedError
from paddock.linux import btrfs, loop
from paddock.linux.descriptors import closing
from paddock.model import PoolSpace
from paddock.storage.pool.config import PoolConfig

MIB = 1 << 20
_PART = 20
_MOST_BELOW_AN_IMAGE = 1024 * MIB
_MOST_BELOW_TREES = 64 * MIB
HINT = "`paddock gc` deletes unused data, `paddock gc --dry-run` lists it"


class Disk:
    """The file system of the state directory."""

    def __init__(self, state_dir: str, config: PoolConfig) -> None:
        self._path, self._config = state_dir, config

    def available_bytes(self) -> int:
        """Return how many bytes a program may still write. The reserve of free space doesn't count."""
        free, kept = self._look()
        return max(0, free - kept)

    def check(self) -> None:
        """Raise ResourceExhaustedError if less than the reserve is free.

        It takes two microseconds, because each new tree asks.
        """
        free, kept = self._look()
        if free < kept:
            raise ResourceExhaustedError(
                f"the disk of {self._path} has {free // MIB} MiB left, and {kept // MIB} MiB of it are kept free",
                hint=f"{HINT}; df -h {self._path}",
            )

    def used_bytes(self) -> int:
        info = os.statvfs(self._path)
        return (info.f_blocks - info.f_bfree) * info.f_frsize

    def _look(self) -> tuple[int, int]:
        info = os.statvfs(self._path)
        if self._config.keep_free_mib is not None:
            kept = self._config.keep_free_mib * MIB
        else:
            most = _MOST_BELOW_AN_IMAGE if self._config.image else _MOST_BELOW_TREES
            kept = min(info.f_blocks * info.f_frsize // _PART, most)
        return info.f_bavail * info.f_frsize, kept

    def space(self) -> PoolSpace:
        """Return the space of a pool whose trees lie directly on the disk."""
        return PoolSpace(used_bytes=self.used_bytes(), available_bytes=self.available_bytes())


_ALIGNED = 16 * MIB  # btrfs gives out space in pieces of that at least
_LEAST_GAIN = 64 * MIB
_KEPT = 16 * MIB  # of the pool itself, for what has to be written to delete something
_NEARLY = 4  # is nearly full when less than the fourth part is free
_MOST_KEPT = 4096 * MIB


class Image:
    """The image of a pool. `pool` is a descriptor of the file system in it."""

    def __init__(self, path: str, pool: int, disk: Disk) -> None:
        self.path, self._pool, self._disk = path, pool, disk

    def size(self) -> tuple[int, int]:
        """Return the length of the file, and its use of the disk."""
        info = os.stat(self.path)
        return info.st_size, info.st_blocks * 512

    def space(self) -> PoolSpace:
        used, _ = self._inside()
        taken = self.size()[1]
        # The file system writes again to free space inside before it takes more of the disk. Space that a program has
        # only allocated (fallocate) takes none of the disk yet.
        available = max(0, self._disk.available_bytes() + taken - used)
        return PoolSpace(used_bytes=used, available_bytes=available, image_bytes=taken)

    def check(self) -> None:
        """Raise ResourceExhaustedError if another tree doesn't fit. It first grows the image, if possible.

        While a transaction runs, btrfs may say that nothing is free although data has room: its metadata has none.
        """
        self._disk.check()
        for make_room in (self.grow, lambda: btrfs.sync(self._pool)):
            if self._inside()[1] >= _KEPT:
                return
            make_room()
        free = self._inside()[1]
        if free < _KEPT:
            raise ResourceExhaustedError(f"the pool is full: {free // MIB} MiB are left", hint=HINT)

    def too_large(self) -> int:
        """Return how many bytes the pool offers and the disk doesn't have."""
        length, taken = self.size()
        return max(0, length - taken - self._disk.available_bytes())

    def grow(self) -> int:
        """Grow the image by half if it is nearly full and the disk has space.

        Return the bytes gained.

        If paddock dies meanwhile, the file is longer than its device. The next call continues there.
        """
        with closing(os.open(self.path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)) as file:
            fcntl.flock(
                file, fcntl.LOCK_EX
            )  # as the process that mounts it (supervisor/pool.py) and those that let it grow
            before = self._total()
            length, taken = self.size()
            if self._inside()[1] >= min(before // _NEARLY, _MOST_KEPT):
                return 0
            wanted = min(length + length // 2, taken + self._disk.available_bytes()) // _ALIGNED * _ALIGNED
            if wanted >= length + _LEAST_GAIN:
                os.ftruncate(file, wanted)
            elif length <= before:
                return 0
            for device in loop.find(file):
                loop.update_size(device)
            btrfs.resize_to_device(self._pool)
            return self._total() - before

    def _total(self) -> int:
        info = os.fstatvfs(self._pool)
        return info.f_blocks * info.f_frsize

    def _inside(self) -> tuple[int, int]:
        """Return used and free bytes of the file system in the image."""
        info = os.fstatvfs(self._pool)
        return (info.f_blocks - info.f_bfree) * info.f_frsize, info.f_bavail * info.f_frsize
