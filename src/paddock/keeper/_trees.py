"""Durable trees inside a sandbox: workspaces, what lies below them, and repositories.

A tree of the pool is seen as the sandbox's own tree is, through the range's view of the pool. What is written there
lasts: no overlay of these is volatile. A repository lies outside the pool and is shared by many sandboxes, so it is
shown through an overlay that is only read: its inodes are the sandbox's own (see `_usr.py`).
"""

from __future__ import annotations

import errno
import os
from contextlib import nullcontext

from paddock.keeper._errors import MountError
from paddock.keeper._house import House
from paddock.keeper._mounts import show_as
from paddock.keeper._plan import JailPlan, Tree, is_repository
from paddock.keeper.layout import REPOSITORIES
from paddock.linux import fsids, mounts, overlay

_PLACE = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_ATTRIBUTES = mounts.NOSUID | mounts.NODEV
_LAYERED = (("redirect_dir", "on"), ("metacopy", "off"))
_LAYERED_USER = (("userxattr", None),)


def make_trees(house: House, plan: JailPlan, slot: int | None, late: list[int]) -> list[tuple[str, int]]:
    """Targets and detached mounts of the plan's `trees`; all descriptors are put on `late`. MountError."""
    return [(tree.target, _make(house, plan, tree, slot, late)) for tree in plan.trees]


def _make(house: House, plan: JailPlan, tree: Tree, slot: int | None, late: list[int]) -> int:
    try:
        if is_repository(tree.name):
            fd = _repository(house, plan, tree.name, slot, late)
        else:
            stored = house.stored(slot)
            if tree.writable and stored is not None:
                _hand_over(house, plan, tree.name, stored)
            fd = (_layered if tree.layers else _whole)(house, tree, slot, late)
    except OSError as error:
        why = "it is not there" if error.errno == errno.ENOENT else str(error)
        raise MountError(f"{tree.name} cannot be mounted at {tree.target!r}: {why}", error.errno) from None
    late.append(fd)
    return fd


def _whole(house: House, tree: Tree, slot: int | None, late: list[int]) -> int:
    fd = mounts.open_tree(b"", _part(house, f"{tree.name}/root", slot, late))
    try:
        mounts.set_attributes(fd, set=_ATTRIBUTES | (0 if tree.writable else mounts.RDONLY))
    except OSError:
        os.close(fd)
        raise
    return fd


def _layered(house: House, tree: Tree, slot: int | None, late: list[int]) -> int:
    lower = [_part(house, f"{layer}/root", slot, late) for layer in tree.layers]
    root = _part(house, f"{tree.name}/root", slot, late)
    if not tree.writable:
        return _overlay(house, [root, *lower], None, None, slot, _ATTRIBUTES | mounts.RDONLY)
    return _overlay(house, lower, root, _part(house, f"{tree.name}/work", slot, late), slot, _ATTRIBUTES)


def _overlay(
    house: House, lower: list[int], upper: int | None, work: int | None, slot: int | None, attributes: int
) -> int:
    options = _LAYERED_USER if slot is None else _LAYERED
    with nullcontext() if slot is None else fsids.acting_as(house.slots.base(slot), house.slots.base(slot)):
        return overlay.mount(lower, upper, work, options, attributes)


def _part(house: House, path: str, slot: int | None, late: list[int]) -> int:
    fd = os.open(path, _PLACE, dir_fd=house.slots.view(slot))
    late.append(fd)
    return fd


def _repository(house: House, plan: JailPlan, name: str, slot: int | None, late: list[int]) -> int:
    """The directory of the host that it lies in, whoever owns it there."""
    place = os.open(os.path.join(house.state, REPOSITORIES, name), _PLACE)
    late.append(place)
    host = mounts.open_tree(b"", place)
    late.append(host)
    if slot is not None:
        show_as(host, os.fstat(place), house.slots.base(slot), plan)
    attributes = _ATTRIBUTES | mounts.NOEXEC | mounts.RDONLY
    with house.slots.attached(host):  # an overlay that is only read has two layers at least
        return _overlay(house, [host, house.usr.empty], None, None, slot, attributes)


def _hand_over(house: House, plan: JailPlan, name: str, stored: int) -> None:
    """A tree that the pool has just made belongs to nobody: the first one who may write it owns it."""
    fd = os.open(f"{name}/root", os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=house.pool)
    try:
        if os.fstat(fd).st_uid == stored and not os.listdir(fd):
            os.fchown(fd, stored + plan.user.uid, stored + plan.user.gid)
    finally:
        os.close(fd)
