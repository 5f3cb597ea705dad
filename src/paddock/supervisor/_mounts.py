"""Mount directories of the host and durable trees in a sandbox.

The supervisor opens a directory of the host in the host's own mounts, and shows it with the ids of the sandbox.

Copy-on-write and read-only directories are overlays. A socket or fifo below one is only a name and leads to no process
of the host: overlayfs gives special files their own inodes (fs/overlayfs/inode.c).

Durable trees are workspaces, their layers, and repositories. A tree of the pool appears through the id range's view of
the pool, as the sandbox's own tree does. Writes there last: none of these overlays is volatile. A repository lies
outside the pool and many sandboxes share it. So it appears through a read-only overlay, whose inodes belong to the
sandbox (see `_slots.py`).
"""

from __future__ import annotations

import errno
import os
import stat
from contextlib import nullcontext

from paddock.linux import mounts, namespaces, overlay
from paddock.linux.descriptors import closing
from paddock.linux.namespaces import IdMap
from paddock.supervisor._context import SupervisorContext
from paddock.supervisor._errors import MountError
from paddock.supervisor._namespaces import visit
from paddock.supervisor.layout import ID_COUNT, ORDINARY_ID, REPOSITORIES
from paddock.supervisor.plan import JailPlan, Mount, Tree, is_repository

_PLACE = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# No redirects and no metadata-only copies: the layer alone then tells what was changed.
_LAYERED = (("redirect_dir", "nofollow"), ("metacopy", "off"))
_LAYERED_TREE = (("redirect_dir", "on"), ("metacopy", "off"))
_LAYERED_ROOT = (("redirect_dir", "on"), ("metacopy", "on"))
_USER = (("userxattr", None),)
_ATTRIBUTES = mounts.NOSUID | mounts.NODEV
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NOT_OF_PEOPLE = ("/proc", "/sys", "/dev")


class Mounting:
    """Make the detached mounts of one plan, as the id range `slot` sees them. It adds all descriptors to `to_close`."""

    def __init__(self, context: SupervisorContext, plan: JailPlan, slot: int | None, to_close: list[int]) -> None:
        self._context, self._plan, self._slot, self._to_close = context, plan, slot, to_close
        self._stored = context.stored(slot)

    def _keep(self, fd: int) -> int:
        self._to_close.append(fd)
        return fd

    def _part(self, path: str) -> int:
        return self._keep(os.open(path, _PLACE, dir_fd=self._context.slots.view(self._slot)))

    # -- the root

    def root(self) -> int:
        """Return the plan's own tree, over its layers. Raises OSError."""
        plan, context = self._plan, self._context
        if not plan.layers:
            return self._whole(plan.tree)
        lower = [self._part(f"{layer}/root") for layer in plan.layers]
        upper, work = self._part(f"{plan.tree}/root"), self._part(f"{plan.tree}/work")
        options = _USER if self._slot is None else _LAYERED_ROOT

        def mount() -> int:
            with context.slots.acting(self._slot):
                return overlay.mount_volatile(lower, upper, work, options, _ATTRIBUTES, file_system=context.pool)

        try:
            return self._keep(mount())
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
        _forget_volatile(context.pool, plan.tree)
        try:
            return self._keep(mount())
        except OSError as error:
            if error.errno != errno.EINVAL or not context.copies:
                raise
        return self._whole(plan.tree)  # no overlay works there, as on overlayfs

    # -- directories of the host

    def mounts(self) -> list[tuple[str, int]]:
        """Return targets and mounts of the plan's `mounts`. Raises MountError."""
        return [(mount.target, self._mount(number, mount)) for number, mount in enumerate(self._plan.mounts)]

    def _mount(self, number: int, mount: Mount) -> int:
        user = self._plan.user
        try:
            host, info = self._open_host(mount)
            if self._slot is not None:
                self._show_as(host, info, stored=self._stored if mount.mode == "rw" else None)
            elif (user.uid, user.gid) != (ORDINARY_ID, ORDINARY_ID):
                raise MountError(
                    f"{mount.source!r} cannot be mounted for user {user.name!r}: an ordinary user's own files are"
                    f" those of uid {ORDINARY_ID} in his sandboxes"
                )
            if mount.mode == "rw":
                mounts.set_attributes(host, set=_ATTRIBUTES, recursive=self._slot is None)
                return host
            return self._layered(number, mount, host, info)
        except OSError as error:
            raise MountError(_words(mount, error), error.errno) from None

    def _open_host(self, mount: Mount) -> tuple[int, os.stat_result]:
        """Return the directory as a detached mount, and its status. The supervisor has released most mounts of the
        host, so it looks in the namespace that it came from."""
        context, flags = self._context, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC
        outside = context.host_mounts
        among = nullcontext() if outside is None else visit(namespaces.NEWNS, outside, context.home)
        with among, closing(os.open(mount.source, flags)) as place:
            _refuse(mount, os.readlink(f"/proc/self/fd/{place}"), context.state)
            # An ordinary user's namespace may not show what the host's mounts hide: all of them or nothing.
            fd = self._keep(mounts.open_tree(b"", place, recursive=not context.root_mode))
            info = os.fstat(place)
            if mount.seen is not None and [*mount.seen] != [info.st_dev, info.st_ino]:
                raise MountError(_elsewhere(mount, "is another directory"))
            return fd, info

    def _show_as(self, host: int, info: os.stat_result, *, stored: int | None = None) -> None:
        """Show files of the owner of `info` as the default user's on this detached mount, and those of others as
        files of `nobody`.

        With `stored` the sandbox's other users can create files in it too. On disk these belong to `stored` plus their
        id: the kernel maps no two ids to one. A program that serves files for a sandbox creates them as root before it
        gives them away.
        """
        assert self._slot is not None
        base, user = self._context.slots.base(self._slot), self._plan.user
        uids, gids = _ids(info.st_uid, user.uid, base, stored), _ids(info.st_gid, user.gid, base, stored)
        with closing(namespaces.id_mapping_namespace(uids, gids)) as owner:
            mounts.set_attributes(host, userns_fd=owner)

    def _layered(self, number: int, mount: Mount, host: int, info: os.stat_result) -> int:
        context, tree = self._context, self._plan.tree
        self._adapt(f"{tree}/mount{number}", info)
        upper = self._part(f"{tree}/mount{number}")
        options: tuple[mounts.Option, ...] = _USER if self._slot is None else _LAYERED
        with context.slots.attached(host), context.slots.acting(self._slot):
            if mount.mode == "ro":  # an overlay without an upper layer has two lower ones
                fd = overlay.mount([host, upper], None, None, options, _ATTRIBUTES | mounts.RDONLY)
            else:
                work = self._part(f"{tree}/work{number}")
                fd = overlay.mount_volatile([host], upper, work, options, _ATTRIBUTES, file_system=context.pool)
        return self._keep(fd)

    def _adapt(self, part: str, info: os.stat_result) -> None:
        """Give a new upper layer the directory's mode and owner: its root stands for the directory itself."""
        with closing(os.open(part, _DIRECTORY, dir_fd=self._context.pool)) as fd:
            if os.listdir(fd):
                return
            os.fchmod(fd, stat.S_IMODE(info.st_mode) & 0o777)
            if self._stored is not None:
                os.fchown(fd, self._stored + self._plan.user.uid, self._stored + self._plan.user.gid)

    # -- trees

    def trees(self) -> list[tuple[str, int]]:
        """Return targets and mounts of the plan's `trees`. Raises MountError."""
        return [(tree.target, self._tree(tree)) for tree in self._plan.trees]

    def _tree(self, tree: Tree) -> int:
        try:
            if is_repository(tree.name):
                return self._repository(tree.name)
            if tree.writable and self._stored is not None:
                self._hand_over(tree.name, self._stored)
            if not tree.layers:
                return self._whole(tree.name, 0 if tree.writable else mounts.RDONLY)
            lower = [self._part(f"{layer}/root") for layer in tree.layers]
            root = self._part(f"{tree.name}/root")
            if not tree.writable:
                return self._overlay([root, *lower], None, None, _ATTRIBUTES | mounts.RDONLY)
            return self._overlay(lower, root, self._part(f"{tree.name}/work"), _ATTRIBUTES)
        except OSError as error:
            why = "it is not there" if error.errno == errno.ENOENT else str(error)
            raise MountError(f"{tree.name} cannot be mounted at {tree.target!r}: {why}", error.errno) from None

    def _whole(self, name: str, attributes: int = 0) -> int:
        fd = self._keep(mounts.open_tree(b"", self._part(f"{name}/root")))
        mounts.set_attributes(fd, set=_ATTRIBUTES | attributes)
        return fd

    def _overlay(self, lower: list[int], upper: int | None, work: int | None, attributes: int) -> int:
        options = _USER if self._slot is None else _LAYERED_TREE
        with self._context.slots.acting(self._slot):
            return self._keep(overlay.mount(lower, upper, work, options, attributes))

    def _repository(self, name: str) -> int:
        """Return a read-only overlay of the host's directory with the repository."""
        place = self._keep(os.open(os.path.join(self._context.state, REPOSITORIES, name), _PLACE))
        host = self._keep(mounts.open_tree(b"", place))
        if self._slot is not None:
            self._show_as(host, os.fstat(place))
        slots = self._context.slots
        with slots.attached(host):  # an overlay that is only read has two layers at least
            return self._overlay([host, slots.empty], None, None, _ATTRIBUTES | mounts.NOEXEC | mounts.RDONLY)

    def _hand_over(self, name: str, stored: int) -> None:
        """Give a tree that the pool has just made to its first writer."""
        with closing(os.open(f"{name}/root", _DIRECTORY, dir_fd=self._context.pool)) as fd:
            if os.fstat(fd).st_uid == stored and not os.listdir(fd):
                os.fchown(fd, stored + self._plan.user.uid, stored + self._plan.user.gid)


def _forget_volatile(pool: int, tree: str) -> None:
    """Remove the mark of an earlier overlay with `volatile`, which refuses another mount (overlayfs.rst).

    Nothing inside ever sees the directory `work`.
    """
    mark = f"{tree}/work/work/incompat/volatile"
    for remove, path in ((os.unlink, f"{mark}/dirty"), (os.rmdir, mark)):
        try:
            remove(path, dir_fd=pool)
        except FileNotFoundError:
            continue


def _refuse(mount: Mount, path: str, state: str) -> None:
    """Raise MountError for what no sandbox may see: paddock's own state, and file systems of the kernel's."""
    inside = _is_below(path, state)
    if inside or _is_below(state, path):
        where = "lies in" if inside else "contains"
        raise MountError(f"{mount.source!r} {where} the state directory of paddock, which no sandbox may see")
    if any(_is_below(path, root) for root in _NOT_OF_PEOPLE):
        raise MountError(f"{mount.source!r} is a file system of the kernel's")


def _is_below(path: str, directory: str) -> bool:
    return path == directory or path.startswith(directory.rstrip("/") + "/")


def _ids(outside: int, inside: int, base: int, stored: int | None) -> list[IdMap]:
    """Map `outside` to `inside`; with `stored`, also all other ids to themselves. The id that `outside` would have had
    goes to `inside`'s place."""
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
