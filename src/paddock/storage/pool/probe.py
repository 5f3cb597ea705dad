"""The drivers that this machine can have: each probe tries the thing itself, and says why it failed."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from paddock.linux import btrfs, files, subordinate_ids
from paddock.linux.descriptors import closing
from paddock.storage.pool.config import PoolConfig, Reason
from paddock.storage.pool.removal import remove
from paddock.supervisor import pool as supervisor_pool

NATIVE, IMAGE, OVERLAY = "btrfs", "btrfs image", "overlay"
_SCRATCH = ".probe-"
_SECONDS = 30


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
            return _overlay_in_a_user_namespace(place)
        except OSError as error:
            return Reason(way=OVERLAY, why=f"{error.strerror} on Linux {platform.release()}")


def is_refused_overlay(config: PoolConfig) -> bool:
    """Tell whether paddock rejected an overlay at the choice of the driver."""
    return config.driver == "copy" and any(reason.way == OVERLAY for reason in config.reasons)


def _overlay_in_a_user_namespace(place: Path) -> Reason | None:
    code = (
        "import sys\n"
        "sys.path.append(sys.argv[1])\n"
        "from paddock.supervisor.pool import try_overlay\n"
        "try:\n"
        "    try_overlay(sys.argv[2])\n"
        "except OSError as error:\n"
        "    sys.exit(str(error))\n"
    )
    source = str(Path(__file__).parents[3])
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", code, source, str(place)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=_SECONDS,
        check=False,
    )
    if done.returncode == 0:
        return None
    lines = done.stderr.strip().splitlines() or ["the probe died"]
    return Reason(way=OVERLAY, why=f"in a user namespace of Linux {platform.release()}: {lines[-1]}")


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
