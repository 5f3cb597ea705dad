"""Room on the disk below a pool, and how much of it is left alone."""

from __future__ import annotations

import os

from paddock.errors import ResourceExhausted
from paddock.model import PoolSpace
from paddock.storage._config import PoolConfig

MIB = 1 << 20
_PART = 20
_MOST_BELOW_AN_IMAGE = 1024 * MIB
_MOST_BELOW_TREES = 64 * MIB
HINT = "`paddock gc` deletes what nobody needs, `paddock gc --dry-run` says what"


class Disk:
    """The file system of the state directory."""

    def __init__(self, state_dir: str, config: PoolConfig) -> None:
        self._path, self._config = state_dir, config

    def available_bytes(self) -> int:
        """What may still be written: without what is kept free, and not less than nothing."""
        free, kept = self._look()
        return max(0, free - kept)

    def check(self) -> None:
        """ResourceExhausted if less is free than is kept free. Two microseconds: each new tree asks."""
        free, kept = self._look()
        if free < kept:
            raise ResourceExhausted(
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
        """Of a pool whose trees lie on the disk itself, beside whatever else is there."""
        return PoolSpace(used_bytes=self.used_bytes(), available_bytes=self.available_bytes())
