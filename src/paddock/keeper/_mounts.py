"""Directories of the host and durable trees inside a sandbox.

Directories of the host are found in the host's own mounts, and shown with the ids of the sandbox.

Copy-on-write and read-only ones are overlays: what lies below them, a socket or a fifo too, is then only a name, and
leads to no process of the host (overlayfs gives special files an inode of its own, fs/overlayfs/inode.c).

Durable trees are workspaces, what lies below them, and repositories. A tree of the pool is seen as the sandbox's own
tree is, through the range's view of the pool. What is written there lasts: no overlay of these is volatile. A
repository lies outside the pool and is shared by many sandboxes, so it is shown through an overlay that is only read:
its inodes are the sandbox's own (see `_slots.py`).
"""

from __future__ import annotations

import errno
import os
import stat
from contextlib import nullcontext

from paddock.keeper._door import visit
from paddock.keeper._errors import MountError
from paddock.keeper._house import House
from paddock.keeper._plan import JailPlan, Mount, Tree, is_repository
from paddock.keeper.layout import ID_COUNT, ORDINARY_ID, REPOSITORIES
from paddock.linux import mounts, namespaces, overlay
from paddock.linux.descriptors import closing
from paddock.linux.namespaces import IdMap

_PLACE = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# No redirects and no metadata-only copies: the layer alone then tells what was changed.
_LAYERED = (("redirect_dir", "nofollow"), ("metacopy", "off"))
_LAYERED_TREE = (("redirect_dir", "on"), ("metacopy", "off"))
_USER = (("userxattr", None),)
ATTRIBUTES = mounts.NOSUID | mounts.NODEV
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NOT_OF_PEOPLE = ("/proc", "/sys", "/dev")


def make_mounts(house: House, plan: JailPlan, slot: int | None, late: list[int]) -> list[tuple[str, int]]:
    """Targets and detached mounts of the plan's `mounts`; all descriptors are put on `late`. MountError."""
    return [(mount.target, _make(house, plan, number, mount, slot, late)) for number, mount in enumerate(plan.mounts)]


def _make(house: House, plan: JailPlan, number: int, mount: Mount, slot: int | None, late: list[int]) -> int:
    try:
        host, info = _open_host(house, mount, late)
        if slot is not None:
            base = house.slots.base(slot)
            _show_as(host, info, base, plan, stored=house.stored(slot) if mount.mode == "rw" else None)
        elif (plan.user.uid, plan.user.gid) != (ORDINARY_ID, ORDINARY_ID):
            raise MountError(
                f"{mount.source!r} cannot be mounted for user {plan.user.name!r}: an ordinary user's own files are"
                f" those of uid {ORDINARY_ID} in his sandboxes"
            )
        if mount.mode == "rw":
            mounts.set_attributes(host, set=ATTRIBUTES, recursive=slot is None)
            return host
        return _layered(house, plan, number, mount, host, info, slot, late)
    except OSError as error:
        raise MountError(_words(mount, error), error.errno) from None


def _open_host(house: House, mount: Mount, late: list[int]) -> tuple[int, os.stat_result]:
    """The directory, as a detached mount, and what it is. The keeper has let go of most mounts of the host: it looks
    for it where it came from."""
    flags = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC
    outside = house.host_mounts
    among = nullcontext() if outside is None else visit(namespaces.NEWNS, outside, house.home.mounts)
    with among, closing(os.open(mount.source, flags)) as place:
        _refuse(mount, os.readlink(f"/proc/self/fd/{place}"), house.state)
        # An ordinary user's namespace may not show what the host's mounts hide: all of them or nothing.
        fd = mounts.open_tree(b"", place, recursive=not house.root_mode)
        late.append(fd)
        info = os.fstat(place)
        if mount.seen is not None and [*mount.seen] != [info.st_dev, info.st_ino]:
            raise MountError(_elsewhere(mount, "is another directory"))
        return fd, info


def _refuse(mount: Mount, path: str, state: str) -> None:
    """MountError for what no sandbox may be given: paddock's own records, and what the kernel makes up."""
    inside = _is_below(path, state)
    if inside or _is_below(state, path):
        where = "lies in" if inside else "contains"
        raise MountError(f"{mount.source!r} {where} the state directory of paddock, which no sandbox may see")
    if any(_is_below(path, root) for root in _NOT_OF_PEOPLE):
        raise MountError(f"{mount.source!r} is a file system of the kernel's")


def _is_below(path: str, directory: str) -> bool:
    return path == directory or path.startswith(directory.rstrip("/") + "/")


def _show_as(host: int, info: os.stat_result, base: int, plan: JailPlan, *, stored: int | None = None) -> None:
    """Files of the one who owns `info` are the default user's on this detached mount, those of others nobody's.

    With `stored` the sandbox's other users can create files in it, which belong to `stored` and their id: the kernel
    maps no two ids to one. A program that serves files for a sandbox creates them as root before it gives them away.
    """
    uids = _ids(info.st_uid, plan.user.uid, base, stored)
    gids = _ids(info.st_gid, plan.user.gid, base, stored)
    with closing(namespaces.id_mapping_namespace(uids, gids)) as owner:
        mounts.set_attributes(host, userns_fd=owner)


def _ids(outside: int, inside: int, base: int, stored: int | None) -> list[IdMap]:
    """Map `outside` to `inside`; with `stored`, also all others to themselves. What `outside` would be then is what
    `inside` would be else.
    """
    maps = [IdMap(outside, base + inside, 1)]
    if stored is None:
        return maps
    first, taken = 0, outside - stored
    if not 0 <= taken < ID_COUNT:
        taken = inside
    if taken != inside:
        maps.append(IdMap(stored + inside, base + taken, 1))
    for apart in (*sorted({inside, taken}), ID_COUNT):
        if apart > first:
            maps.append(IdMap(stored + first, base + first, apart - first))
        first = apart + 1
    return maps


def _layered(
    house: House,
    plan: JailPlan,
    number: int,
    mount: Mount,
    host: int,
    info: os.stat_result,
    slot: int | None,
    late: list[int],
) -> int:
    _adapt(house, plan, f"{plan.tree}/mount{number}", info, slot)
    upper = part(house, f"{plan.tree}/mount{number}", slot, late)
    options: tuple[mounts.Option, ...] = _USER if slot is None else _LAYERED
    with house.slots.attached(host), house.slots.acting(slot):
        if mount.mode == "ro":  # an overlay without an upper layer has two lower ones
            fd = overlay.mount([host, upper], None, None, options, ATTRIBUTES | mounts.RDONLY)
        else:
            work = part(house, f"{plan.tree}/work{number}", slot, late)
            fd = overlay.mount_volatile([host], upper, work, options, ATTRIBUTES, file_system=house.pool)
    late.append(fd)
    return fd


def _adapt(house: House, plan: JailPlan, part: str, info: os.stat_result, slot: int | None) -> None:
    """Gives a new upper layer, whose root stands for the directory itself, the directory's mode and owner."""
    with closing(os.open(part, _DIRECTORY, dir_fd=house.pool)) as fd:
        if os.listdir(fd):
            return
        os.fchmod(fd, stat.S_IMODE(info.st_mode) & 0o777)
        stored = house.stored(slot)
        if stored is not None:
            os.fchown(fd, stored + plan.user.uid, stored + plan.user.gid)


def _elsewhere(mount: Mount, what: str) -> str:
    return (
        f"{mount.source!r} cannot be mounted at {mount.target!r}: in the mount namespace of paddock's supervisor, which"
        f" is its first caller's, it {what}"
    )


def _words(mount: Mount, error: OSError) -> str:
    if mount.seen is not None and error.errno in (errno.ENOENT, errno.ENOTDIR):
        return _elsewhere(mount, "isn't there")
    match error.errno:
        case errno.ENOENT | errno.ENOTDIR:
            why = "there is no such directory"
        case errno.EINVAL:
            why = "its file system cannot be shown with other owners, or other file systems are mounted below it"
        case _:
            why = str(error)
    return f"{mount.source!r} cannot be mounted at {mount.target!r}: {why}"


# -- trees


def make_trees(house: House, plan: JailPlan, slot: int | None, late: list[int]) -> list[tuple[str, int]]:
    """Targets and detached mounts of the plan's `trees`; all descriptors are put on `late`. MountError."""
    return [(tree.target, _make_tree(house, plan, tree, slot, late)) for tree in plan.trees]


def _make_tree(house: House, plan: JailPlan, tree: Tree, slot: int | None, late: list[int]) -> int:
    try:
        if is_repository(tree.name):
            fd = _repository(house, plan, tree.name, slot, late)
        else:
            stored = house.stored(slot)
            if tree.writable and stored is not None:
                _hand_over(house, plan, tree.name, stored)
            if tree.layers:
                fd = _layered_tree(house, tree, slot, late)
            else:
                fd = whole(house, tree.name, slot, late, 0 if tree.writable else mounts.RDONLY)
    except OSError as error:
        why = "it is not there" if error.errno == errno.ENOENT else str(error)
        raise MountError(f"{tree.name} cannot be mounted at {tree.target!r}: {why}", error.errno) from None
    late.append(fd)
    return fd


def whole(house: House, name: str, slot: int | None, late: list[int], attributes: int = 0) -> int:
    """A detached mount of a tree without layers. OSError."""
    fd = mounts.open_tree(b"", part(house, f"{name}/root", slot, late))
    try:
        mounts.set_attributes(fd, set=ATTRIBUTES | attributes)
    except OSError:
        os.close(fd)
        raise
    return fd


def _layered_tree(house: House, tree: Tree, slot: int | None, late: list[int]) -> int:
    lower = [part(house, f"{layer}/root", slot, late) for layer in tree.layers]
    root = part(house, f"{tree.name}/root", slot, late)
    if not tree.writable:
        return _overlay(house, [root, *lower], None, None, slot, ATTRIBUTES | mounts.RDONLY)
    return _overlay(house, lower, root, part(house, f"{tree.name}/work", slot, late), slot, ATTRIBUTES)


def _overlay(
    house: House, lower: list[int], upper: int | None, work: int | None, slot: int | None, attributes: int
) -> int:
    options = _USER if slot is None else _LAYERED_TREE
    with house.slots.acting(slot):
        return overlay.mount(lower, upper, work, options, attributes)


def part(house: House, path: str, slot: int | None, late: list[int]) -> int:
    """A directory of the pool, as the range `slot` sees it; it is put on `late`."""
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
        _show_as(host, os.fstat(place), house.slots.base(slot), plan)
    attributes = ATTRIBUTES | mounts.NOEXEC | mounts.RDONLY
    with house.slots.attached(host):  # an overlay that is only read has two layers at least
        return _overlay(house, [host, house.slots.empty], None, None, slot, attributes)


def _hand_over(house: House, plan: JailPlan, name: str, stored: int) -> None:
    """A tree that the pool has just made belongs to nobody: the first one who may write it owns it."""
    with closing(os.open(f"{name}/root", _DIRECTORY, dir_fd=house.pool)) as fd:
        if os.fstat(fd).st_uid == stored and not os.listdir(fd):
            os.fchown(fd, stored + plan.user.uid, stored + plan.user.gid)
