"""The service's side of opening the pool."""

from __future__ import annotations

import os
from importlib import import_module
from pathlib import Path

from paddock.errors import InvalidArgument, NotConfigured
from paddock.keeper.layout import POOL
from paddock.storage._base import Pool
from paddock.storage._config import PoolConfig
from paddock.storage._trees import DIRECTORY

_DRIVERS = {
    "btrfs": ("_btrfs", "BtrfsPool"),
    "overlay": ("_directories", "OverlayPool"),
    "copy": ("_directories", "CopyPool"),
}


def open_pool(state_dir: Path, config: PoolConfig, pool_fd: int | None = None) -> Pool:
    """The pool whose directory the keeper has opened as `pool_fd`, which is the pool's from now on, and closed if
    this fails.

    Without a descriptor, `<state_dir>/pool` itself, where the pool is no image. What killed processes have left half
    made is deleted now.
    """
    if pool_fd is None:
        if config.image is not None:
            raise InvalidArgument("only the keeper mounts the image of a pool", hint="ask it for the descriptor")
        try:
            pool_fd = os.open(state_dir / POOL, DIRECTORY)
        except FileNotFoundError as error:
            raise NotConfigured(f"{state_dir} holds no pool", hint="paddock doctor") from error
    try:
        module, name = _DRIVERS[config.driver]
        driver = getattr(import_module(f"paddock.storage.{module}"), name)
        pool: Pool = driver(pool_fd, config, str(state_dir / POOL))
        pool.sweep()
    except BaseException:
        os.close(pool_fd)
        raise
    return pool
