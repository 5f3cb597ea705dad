"""The drivers that this machine can have: each probe tries the thing itself, and says why it failed."""

from __future__ import annotations

import os
import platform
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from paddock.linux import btrfs, files, subordinate_ids
from paddock.linux.descriptors import closing
from paddock.storage.commands import attempt
from paddock.storage.pool.config import PoolConfig, Reason
from paddock.storage.pool.removal import remove
from paddock.supervisor import pool as supervisor_pool

NATIVE, IMAGE, OVERLAY = "btrfs", "btrfs image", "overlay"
_SCRATCH = ".probe-"
_TRY_OVERLAY = (
    "from paddock.supervisor.pool import try_overlay\n"
    "try:\n"
    "    try_overlay(sys.argv[2])\n"
    "except OSError as error:\n"
    "    sys.exit(str(error))\n"
)


def native_btrfs(state_dir: Path) -> Reason | None:
    """Try subvolumes in the state directory itself. None: they work."""
    with _scratch(state_dir) as place, closing(os.open(place, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)) as fd:
        try:
            if not btrfs.is_btrfs(fd):
                return Reason(way=NATIVE, why="the state directory is not on btrfs")
            btrfs.create_subvolume(fd, b"probe")
            remove(fd, "probe")
        except OSError as error:
            return Reason(way=NATIVE, why=str(error))
    return None


def image_possible() -> Reason | None:
    """Check the requirements of a btrfs image on a loop device. None: only a trial can show further obstacles."""
    if os.geteuid() != 0:
        return Reason(way=IMAGE, why="mounting an image needs root", fix=subordinate_ids.as_root())
    if files.find_program("mkfs.btrfs") is None:
        return Reason(way=IMAGE, why="mkfs.btrfs is not installed", fix="apt-get install btrfs-progs")
    if not os.path.exists("/dev/loop-control"):
        return Reason(way=IMAGE, why="there is no /dev/loop-control", fix="modprobe loop")
    return None


def overlay(state_dir: Path) -> Reason | None:
    """Try an overlay with its writable layer in the state directory. None: it works."""
    with _scratch(state_dir) as place:
        try:
            if os.geteuid() == 0:
                supervisor_pool.try_overlay(str(place))
                return None
            why = attempt(_TRY_OVERLAY, str(place))
        except OSError as error:
            return Reason(way=OVERLAY, why=f"{error.strerror} on Linux {platform.release()}")
    return None if why is None else Reason(way=OVERLAY, why=f"in a user namespace of Linux {platform.release()}: {why}")


def is_refused_overlay(config: PoolConfig) -> bool:
    """Tell whether paddock rejected an overlay at the choice of the driver."""
    return config.driver == "copy" and any(reason.way == OVERLAY for reason in config.reasons)


@contextmanager
def _scratch(state_dir: Path) -> Generator[Path]:
    """Make an empty directory on the file system in question."""
    from tempfile import mkdtemp

    place = Path(mkdtemp(prefix=_SCRATCH, dir=state_dir))
    try:
        yield place
    finally:
        _remove(state_dir, place.name)


def sweep(state_dir: Path) -> None:
    """Remove the remains of a killed probe."""
    for name in os.listdir(state_dir):
        if name.startswith(_SCRATCH):
            _remove(state_dir, name)


def _remove(state_dir: Path, name: str) -> None:
    with closing(os.open(state_dir, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)) as fd:
        remove(fd, name)
