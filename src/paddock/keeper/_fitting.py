"""Fitting a spare out with its tree of mounts, from outside: the keeper goes in, works, and comes out again.

What runs inside at that moment are two processes of ours that wait. The tree itself may have been written by an
earlier sandbox, so no place in it is found through a link.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass

from paddock.keeper import _trust_places
from paddock.keeper._door import visit
from paddock.keeper._house import House
from paddock.keeper._plan import JailPlan
from paddock.keeper._protect import protect
from paddock.keeper._spare import Spare
from paddock.keeper._trace import Steps
from paddock.linux import fsids, mounts, namespaces, openat2

_PLACE = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC


@dataclass(frozen=True, slots=True)
class Layers:
    """Detached mounts: the root, the machine's /usr, those of the plan with their targets, the certificates, and a /dev
    that is not everybody's."""

    root: int
    usr: int | None
    mounts: list[tuple[str, int]]
    trust: tuple[int, ...] = ()
    dev: int | None = None


def fit_out(
    house: House, plan: JailPlan, spare: Spare, layers: Layers, steps: Steps, *, send: Callable[[], None]
) -> None:
    """Makes `layers` the tree of the spare's processes, and puts in place what is on its stage.

    `send` is called when they have their root; while the agent goes on, the kernel lets go of the old one.
    """
    with visit(spare.door, house.home):
        steps.begin("attach")
        namespaces.set_hostname(plan.hostname.encode())
        place = os.open(house.mount_point, _PLACE)
        try:
            mounts.move_mount(layers.root, place)
        finally:
            os.close(place)
        os.fchdir(layers.root)
        if layers.usr is not None:
            _attach_usr(layers.usr)
        steps.end("attach")
        steps.begin("stage")
        if layers.dev is None:
            _take(house, plan, b"dev", b"shm", plan.tmp_bytes // 2)
        else:
            _move(layers.dev, b"dev")
            _take(house, plan, b"dev/pts")
            _take(house, plan, b"dev/shm", b"", plan.tmp_bytes // 2)
        _take(house, plan, b"proc")
        _take(house, plan, b"tmp", b"", plan.tmp_bytes)
        if layers.trust:
            _trust_places.attach(layers.trust)
        steps.end("stage")
        if layers.mounts:
            steps.begin("places")
            _attach_mounts(house.base(spare.slot), layers.mounts)
            steps.end("places")
        if plan.protect:
            steps.begin("protect")
            protect(plan.protect)
            steps.end("protect")
        steps.begin("pivot")
        mounts.pivot()
        steps.end("pivot")
        steps.begin("send")
        send()
        steps.end("send")
        steps.begin("detach")
        mounts.detach_old_root()
        steps.end("detach")


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


def _attach_mounts(base: int | None, made: list[tuple[str, int]]) -> None:
    # What is missing of the way is made in the tree, whose owners are those of the range.
    for target, fd in sorted(made):
        path = os.fsencode(target).lstrip(b"/")
        with nullcontext() if base is None else fsids.acting_as(base, base):
            _make_place(path)
        _move(fd, path)


def _make_place(path: bytes) -> None:
    parts = path.split(b"/")
    strict = os.umask(0o022)
    try:
        for depth in range(len(parts)):
            above = _place(b"/".join(parts[:depth]) or b".")
            try:
                os.mkdir(parts[depth], dir_fd=above)
            except FileExistsError:
                continue
            finally:
                os.close(above)
    finally:
        os.umask(strict)
