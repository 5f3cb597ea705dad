"""Fitting a spare out with its tree of mounts, from outside: the keeper goes in, works, and comes out again.

What runs inside at that moment are two processes of ours that wait. The tree itself may have been written by an
earlier sandbox, so no place in it is found through a link.
"""

from __future__ import annotations

import os

from paddock.keeper._door import Door, visit
from paddock.keeper._house import House
from paddock.keeper._plan import JailPlan
from paddock.keeper._trace import Steps
from paddock.linux import mounts, namespaces, openat2

_PLACE = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC


def fit_out(house: House, plan: JailPlan, door: Door, root: int, usr: int | None, steps: Steps) -> None:
    """Makes the detached mount `root` the root of the spare's processes, and puts in place what is on its stage."""
    with visit(door, house.home):
        steps.begin("attach")
        namespaces.set_hostname(plan.hostname.encode())
        place = os.open(house.mount_point, _PLACE)
        try:
            mounts.move_mount(root, place)
        finally:
            os.close(place)
        os.fchdir(root)
        if usr is not None:
            _attach_usr(usr)
        steps.end("attach")
        steps.begin("stage")
        _take(house, plan, b"dev", b"shm", plan.tmp_bytes // 2)
        _take(house, plan, b"proc")
        _take(house, plan, b"tmp", b"", plan.tmp_bytes)
        steps.end("stage")
        steps.begin("pivot")
        mounts.pivot_into()  # takes along all whose root was the old one
        steps.end("pivot")


def _attach_usr(usr: int) -> None:
    """The machine's /usr, with the tree's own /usr/local in it."""
    place = _place(b"usr/local")
    try:
        local = mounts.open_tree(b"", place)
    finally:
        os.close(place)
    try:
        _move(usr, b"usr")
        _move(local, b"usr/local")
    finally:
        os.close(local)


def _take(house: House, plan: JailPlan, name: bytes, tmpfs: bytes | None = None, size: int = 0) -> None:
    """Moves a mount from the stage to its place, and sets the size of the tmpfs at `tmpfs` below it."""
    fd = os.open(house.stage + b"/" + name, _PLACE)
    try:
        if tmpfs is not None:
            where = os.open(tmpfs, _PLACE, dir_fd=fd) if tmpfs else os.dup(fd)
            try:
                mounts.reconfigure(where, "tmpfs", (("size", str(size)), ("nr_inodes", str(plan.inodes))))
            finally:
                os.close(where)
        _move(fd, name)
    finally:
        os.close(fd)


def _move(mount: int, path: bytes) -> None:
    place = _place(path)
    try:
        mounts.move_mount(mount, place)
    finally:
        os.close(place)


def _place(path: bytes) -> int:
    """The directory to mount on, found without any link."""
    return openat2.open_beneath(mounts.AT_FDCWD, path, _PLACE | os.O_NOFOLLOW, symlinks=False)
