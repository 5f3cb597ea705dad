"""Chooses the driver of a state directory once, creates its files atomically, and opens the pool."""

from __future__ import annotations

import errno
import os
import socket
import subprocess
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import get_args

import msgspec

from paddock.errors import InvalidArgumentError, InvalidStateError, NotConfiguredError, logged
from paddock.linux import btrfs, files, subordinate_ids
from paddock.linux.descriptors import closing
from paddock.linux.whole import sync_directory
from paddock.model import IdPrefix
from paddock.model.config import read_config
from paddock.storage.pool import probe
from paddock.storage.pool.base import Pool
from paddock.storage.pool.config import Driver, PoolConfig, Reason, load, store
from paddock.storage.pool.trees import DIRECTORY
from paddock.storage.pool.worker import Worker
from paddock.supervisor import pool as supervisor_pool
from paddock.supervisor.layout import POOL, POOL_IMAGE, SUPERVISOR_SOCKET

_DRIVERS = {
    "btrfs": ("_btrfs", "BtrfsPool"),
    "overlay": ("_directories", "OverlayPool"),
    "copy": ("_directories", "CopyPool"),
}


def open_pool(state_dir: Path, config: PoolConfig, pool_fd: int | None = None) -> Pool:
    """Open the pool of the descriptor `pool_fd`, which the supervisor has opened.

    The pool owns it from now on, and closes it if this fails. Without a descriptor, the pool is `<state_dir>/pool`
    itself, unless it is an image. This deletes the unfinished trees of killed processes.
    """
    if pool_fd is None:
        if config.image is not None:
            raise InvalidArgumentError(
                "only the supervisor mounts the image of a pool", hint="ask it for the descriptor"
            )
        try:
            pool_fd = os.open(state_dir / POOL, DIRECTORY)
        except FileNotFoundError as error:
            raise NotConfiguredError(f"{state_dir} holds no pool", hint="paddock doctor") from error
    try:
        module, name = _DRIVERS[config.driver]
        driver = getattr(import_module(f"{__package__}.{module}"), name)
        pool: Pool = driver(pool_fd, config, str(state_dir / POOL))
        pool.sweep()
    except BaseException:
        os.close(pool_fd)
        raise
    return pool


GIB = 1 << 30
LARGEST_IMAGE = 64 * GIB
SMALLEST_IMAGE = 1 * GIB
_UNFINISHED_IMAGE = POOL_IMAGE + ".tmp"
_SUPERBLOCK, _MAGIC = 0x1_0040, b"_BHRfS_M"  # btrfs on-disk format: the primary super block at 64 KiB
_MKFS_SECONDS = 300


def prepare(
    state_dir: Path, *, driver: str | None = None, image_bytes: int | None = None, whole: bool | None = None
) -> PoolConfig:
    """Prepare the state directory for a supervisor, and return the configuration of its pool.

    A second call changes nothing. There is one exception: it tries again if only whole copies worked and the pool is
    empty. `driver` forces one (btrfs, overlay, copy). By default `config.toml` does, or paddock chooses the best that
    works here.

    `image_bytes` is the size of a new image, which takes only as much of the disk as it contains. The default is half
    of the free space, at most 64 GiB. `whole`: an ordinary user's sandboxes have all the ids of a system, by the user's
    subordinate ids. The default is the one of `config.toml`.

    Raises NotConfiguredError if the forced driver doesn't work here. Raises InvalidStateError if there are trees on
    another driver.
    """
    settings = read_config(state_dir)
    forced = _known(driver or settings.pool_driver)
    state_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    if state_dir.stat().st_uid != os.geteuid():
        raise InvalidStateError(f"{state_dir} belongs to another user", hint="choose another state directory")
    state_dir.chmod(0o700)
    config = load(state_dir)
    if config is not None and not _lost_image(state_dir, config):
        if forced not in (None, config.driver):
            raise InvalidStateError(
                f"the trees in {state_dir} are on {config.driver}, not on {forced}",
                hint="choose another state directory",
            )
        if forced is not None or not _may_do_better(state_dir, config):
            return config
    (state_dir / POOL).mkdir(exist_ok=True)
    # paddock opens an overlay's layers as one of the sandbox's ids, from a descriptor of this directory.
    (state_dir / POOL).chmod(0o711)
    probe.sweep(state_dir)
    whole = settings.subordinate_ids if whole is None else whole
    config = _with_ids(_choose(state_dir, forced, image_bytes), whole)
    store(state_dir, config)
    return config


def _may_do_better(state_dir: Path, config: PoolConfig) -> bool:
    """Tell whether an overlay works by now. The kernel may have refused user namespaces before. No tree changes
    drivers."""
    if not probe.is_refused_overlay(config) or _in_use(state_dir):
        return False
    trees = [name for name in os.listdir(state_dir / POOL) if not name.startswith((".", IdPrefix.TEMPLATE))]
    return not trees and probe.overlay(state_dir) is None


def _in_use(state_dir: Path) -> bool:
    """Tell whether a supervisor serves the pool: its clients have opened the pool as it was."""
    with socket.socket(socket.AF_UNIX) as door:
        return door.connect_ex(str(state_dir / SUPERVISOR_SOCKET)) not in (errno.ENOENT, errno.ECONNREFUSED)


def _with_ids(config: PoolConfig, whole: bool) -> PoolConfig:
    """Decide which ids own the files of sandboxes.

    It can't change later. Raises NotConfiguredError if subordinate ids don't work.
    """
    if os.geteuid() == 0 or not whole:
        return config
    why = "trees on btrfs are not kept with them" if config.driver == "btrfs" else None
    ids = subordinate_ids.granted()
    if isinstance(ids, str):
        why = ids
    elif why is None:
        worker = Worker(0, ids)
        try:
            worker.confined(os.getuid, ())
        except NotConfiguredError as error:
            why = error.message
        else:
            return msgspec.structs.replace(config, subordinate_ids=ids)
        finally:
            worker.close()
    raise NotConfiguredError(f"there are no subordinate ids for sandboxes: {why}", hint=subordinate_ids.remedy())


def _known(driver: str | None) -> Driver | None:
    try:
        return msgspec.convert(driver, Driver | None)
    except msgspec.ValidationError:
        raise InvalidArgumentError(f"no pool driver {driver!r}", hint=f"one of {', '.join(get_args(Driver))}") from None


def _choose(state_dir: Path, forced: Driver | None, image_bytes: int | None) -> PoolConfig:
    """Choose the best working driver among the permitted ones. Raises NotConfiguredError."""
    ways: tuple[tuple[Driver, str | None, Callable[[], Reason | None]], ...] = (
        ("btrfs", None, lambda: probe.native_btrfs(state_dir)),
        ("btrfs", POOL_IMAGE, lambda: _make_image(state_dir, image_bytes)),
        ("overlay", None, lambda: probe.overlay(state_dir)),
        ("copy", None, lambda: None),
    )
    reasons: list[Reason] = []
    for driver, image, why_not in ways:
        if forced in (None, driver):
            reason = why_not()
            if reason is None:
                return PoolConfig(driver=driver, image=image, reasons=tuple(reasons))
            reasons.append(reason)
    raise NotConfiguredError(
        f"pool driver {forced} does not work here: " + "; ".join(reason.why for reason in reasons),
        hint=next((reason.fix for reason in reasons if reason.fix), "paddock doctor"),
    )


def _make_image(state_dir: Path, size: int | None) -> Reason | None:
    """Make the image under another name, try to mount it, and rename it: a whole one or none."""
    if reason := probe.image_possible():
        return reason
    image, unfinished = state_dir / POOL_IMAGE, state_dir / _UNFINISHED_IMAGE
    unfinished.unlink(missing_ok=True)
    if not _is_whole(image):
        if size is None:
            disk = os.statvfs(state_dir)
            free = disk.f_bavail * disk.f_frsize
            if free < 2 * SMALLEST_IMAGE:
                return Reason(way=probe.IMAGE, why=f"less than 2 GiB are free at {state_dir}")
            size = min(free // 2, LARGEST_IMAGE)
        if reason := _format(unfinished, size):
            return reason
        unfinished.rename(image)
        sync_directory(state_dir)
    try:
        with (
            closing(supervisor_pool.mount_image(str(image))) as mount,
            closing(os.open(".", DIRECTORY, dir_fd=mount)) as pool,
            logged("give the metadata room", str(image)),
        ):
            # mkfs gives it 8 MiB, which the kernel's reserve nearly fills. When data has taken all the rest, a chunk
            # comes and goes with each create, and statfs says that nothing is free. At last the kernel fails to remove
            # one, and the pool takes no writes any more (fs/btrfs/volumes.c, btrfs_remove_chunk).
            btrfs.balance_metadata(pool)
    except OSError as error:
        image.unlink()
        return Reason(way=probe.IMAGE, why=f"it cannot be mounted: {error}")
    return None


def _format(path: Path, size: int) -> Reason | None:
    tool = files.find_program("mkfs.btrfs")
    assert tool is not None
    with closing(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)) as fd:
        os.ftruncate(fd, size)
        # One copy of the metadata: the disk below is one, and two copies on it would halve the speed of small writes.
        done = subprocess.run(
            [tool, "--quiet", "--label", "paddock", "--metadata", "single", "--nodiscard", "--", str(path)],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_MKFS_SECONDS,
            check=False,
        )
        os.fsync(fd)
    if done.returncode != 0:
        path.unlink()
        return Reason(way=probe.IMAGE, why=f"mkfs.btrfs failed: {done.stderr.strip()[-300:]}")
    return None


def _lost_image(state_dir: Path, config: PoolConfig) -> bool:
    """Tell whether the image is missing, and with it all trees. Raises InvalidStateError if it is corrupt."""
    if config.image is None:
        return False
    image = state_dir / config.image
    if not image.exists():
        return True
    if not _is_whole(image):
        raise InvalidStateError(
            f"{image} is damaged: it holds no btrfs", hint=f"rm {image} loses all trees and goes on"
        )
    return False


def _is_whole(image: Path) -> bool:
    """Tell whether the image has its super block, which mkfs writes last, and its name, which we give last."""
    try:
        with image.open("rb") as file:
            file.seek(_SUPERBLOCK)
            return file.read(len(_MAGIC)) == _MAGIC
    except FileNotFoundError:
        return False
