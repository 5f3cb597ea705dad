"""Trees as btrfs subvolumes. Creation, copy and deletion take a constant time."""

from __future__ import annotations

import errno
import os
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial

from paddock.errors import InvalidStateError, PlatformError, logged
from paddock.linux import btrfs, loop
from paddock.linux.descriptors import closing
from paddock.model import Check
from paddock.storage.pool._image import MIB, Disk, Image
from paddock.storage.pool.base import Pool
from paddock.storage.pool.config import PoolConfig, check, pool_checks
from paddock.storage.pool.removal import remove
from paddock.storage.pool.trees import (
    DIRECTORY,
    check_name,
    make_part,
    names_in,
    open_to_all,
    tree_error,
    within,
    works_in,
)

_QUICK_BYTES = 2048 * MIB
_READ_ONLY = os.ST_RDONLY


def device_checks(pool: int, image: Image | None, where: str) -> tuple[Check, ...]:
    """Report errors of the device below, and whether the file system has become read-only for one."""
    checks: list[Check] = []
    if os.fstatvfs(pool).f_flag & _READ_ONLY:
        checks.append(
            check(
                "writable",
                "missing",
                f"{where} takes no writes any more: the disk below failed or was full",
                "make room on the disk, then kill all sandboxes: the next supervisor opens it anew",
            )
        )
    try:
        errors = btrfs.device_errors(pool)
    except PermissionError:
        return (*checks, check("device", "weak", "only root may read the error counters of btrfs", None))
    if errors:
        found = ", ".join(f"{count} {kind}" for kind, count in errors.items())
        fix = "copy what you need out of it; then use another state directory"
        checks.append(check("device", "missing", f"{where} has had {found}", fix))
    else:
        checks.append(check("device", "ok", f"{where} has had no errors", None))
    if image is not None:
        checks.extend(_image_checks(image))
    return tuple(checks)


def scrub_check(pool: int, used_bytes: int, where: str, asked: bool | None) -> Check:
    """Compare all checksums, if `asked`, or by default if it is quick."""
    if asked is False or (asked is None and used_bytes > _QUICK_BYTES):
        detail = f"the {used_bytes // MIB} MiB in {where} were not read"
        return check("checksums", "ok", detail, "paddock doctor --storage --scrub")
    try:
        found = btrfs.scrub(pool)
    except OSError as error:
        if error.errno == errno.EPERM:
            return check("checksums", "weak", "only root may compare them all", None)
        if error.errno == errno.EROFS:
            return check("checksums", "weak", f"what is in {where} was not read: it takes no writes", None)
        if error.errno == errno.EINPROGRESS:
            return check("checksums", "ok", "another program is comparing them now", None)
        return check("checksums", "missing", f"{where} cannot be read through: {error}", "dmesg")
    if not found:
        return check("checksums", "ok", f"all that is in {where} agrees with them", None)
    words = ", ".join(f"{count} {kind}" for kind, count in found.items())
    return check(
        "checksums",
        "missing",
        f"{where} is damaged: {words}",
        "`dmesg` names the files; copy what you need out of it, then use another state directory",
    )


def _image_checks(image: Image) -> tuple[Check, ...]:
    checks: list[Check] = []
    with closing(os.open(image.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)) as file:
        devices = [os.fsdecode(device) for device in loop.find(file)]
    if len(devices) > 1:
        detail = f"{image.path} is below {' and '.join(devices)}: what one writes, the other overwrites"
        checks.append(check("loop device", "missing", detail, "end all sandboxes, then losetup -d what is left"))
    else:
        checks.append(check("loop device", "ok", f"{', '.join(devices) or 'none'} over {image.path}", None))
    checks.extend(
        check("leftover", "weak", f"{device} holds {path}, which was deleted", f"losetup -d {device}")
        for device, path in loop.deleted()
        if os.path.basename(path) == os.path.basename(image.path)
    )
    length, taken = image.size()
    detail = f"{image.path} offers {length // MIB} MiB and takes {taken // MIB} MiB of the disk"
    if missing := image.too_large():
        fix = "make room on the disk, or give space back: paddock gc"
        checks.append(check("image", "weak", f"{detail}, which has {missing // MIB} MiB too few for it", fix))
    else:
        checks.append(check("image", "ok", detail, None))
    return tuple(checks)


_NOT_SO = frozenset({errno.ENOTEMPTY, errno.EPERM, errno.EACCES, errno.EINVAL, errno.ENOTDIR})
_FIRST_SUBVOLUME = 256
_GROUPS_SPARED = 64
_ROOM_BYTES = 64 << 20
_PAUSES_SECONDS = (0.0, 0.2, 1.0)


class BtrfsPool(Pool):
    """A pool on btrfs. Quotas need root. It doesn't turn them on in a file system of the machine's own."""

    driver = "btrfs"

    def __init__(self, fd: int, config: PoolConfig, path: str) -> None:
        super().__init__(fd, config, path)
        self._quota: btrfs.QuotaMode = "off" if self._base is None else btrfs.quota_mode(fd)
        self._image: Image | None = None
        if config.image is not None:
            directory = os.path.dirname(path)
            self._room = self._image = Image(f"{directory}/{config.image}", fd, Disk(directory, config))
        self._stale: deque[int] = deque()  # quota groups of deleted trees, which full quotas leave behind

    def snapshot(
        self, source: str, name: str, *, limit_bytes: int | None = None, at_rest: bool = False, ours: bool = False
    ) -> None:
        def begin(making: str) -> None:
            btrfs.snapshot(origin, self._fd, making.encode())

        def fill(tree: int) -> None:
            # A work directory belongs to one mount. overlayfs refuses one with files of another mount.
            for work in () if at_rest else works_in(tree):
                remove(tree, work)
                make_part(tree, work, self._base)
            self._limit(tree, limit_bytes)

        with within(self, source, "copy") as origin:
            if btrfs.has_subvolumes(origin):  # of each a copy has an empty directory
                raise InvalidStateError(
                    f"tree {source!r} can't be copied: btrfs subvolumes lie in it, and a copy would leave out their"
                    " files",
                    hint="`find /workspace -inum 256` in its sandbox shows them: copy each with cp -a, remove it with"
                    " rm -r",
                    name=source,
                )
            self._make(name, fill, begin=begin, doing="copy")

    def flush(self, name: str) -> None:
        """Write the tree to disk through a temporary snapshot. That is the only way to write one subvolume alone."""
        making = f".making-{os.urandom(8).hex()}"
        with within(self, name, "flush") as tree, self.working():
            self._with_room(lambda: btrfs.snapshot(tree, self._fd, making.encode()))
            self._discard_quietly(making)

    def _attempt(self, name: str, begin: Callable[[str], None], fill: Callable[[int], None]) -> None:
        self._with_room(partial(super()._attempt, name, begin, fill))

    def _with_room(self, action: Callable[[], None]) -> None:
        """Do `action`, and wait for the kernel's cleaner where needed.

        The kernel reports ENOSPC although there is room until its cleaner has given back deleted trees, and the unused
        space of one kind that another kind needs. It goes on after each commit.
        """
        for seconds in _PAUSES_SECONDS:
            try:
                return action()
            except OSError as error:
                if error.errno != errno.ENOSPC or self.space().available_bytes < _ROOM_BYTES:
                    raise
            btrfs.sync(self._fd)
            time.sleep(seconds)
        return action()

    def rename(self, source: str, name: str, *, limit_bytes: int | None = None) -> None:
        if limit_bytes is not None:
            self.allow(source, limit_bytes)
        super().rename(source, name)

    def allow(self, name: str, limit_bytes: int) -> None:
        with within(self, name, "limit") as tree:
            self._limit(tree, limit_bytes)

    def delete(self, name: str) -> None:
        check_name(name)
        group = self._group(name)
        try:
            btrfs.destroy_subvolume(self._fd, name.encode())
        except OSError as error:
            if error.errno == errno.ENOENT:
                return
            if error.errno not in _NOT_SO:
                raise tree_error(error, name, "delete") from error
            super().delete(name)  # it holds other subvolumes, or we may not destroy it: entry by entry
        self._forget(group)

    def settle(self) -> None:
        try:
            btrfs.sync(self._fd)
        except OSError as error:
            raise PlatformError(f"the pool could not be written to its disk: {error.strerror}") from error

    def usage(self, name: str) -> btrfs.Quota | None:
        with within(self, name, "measure") as tree:
            if self._quota == "off":
                return None
            with closing(btrfs.open_quotas(tree)) as quotas:
                return btrfs.quota(quotas, btrfs.subvolume_id(tree))

    def checks(self) -> tuple[Check, ...]:
        if self._quota != "off":
            return pool_checks(self.config, None)
        if self._base is None:
            return pool_checks(self.config, "quotas of btrfs need root")
        return pool_checks(
            self.config, "quotas are off on this file system", fix=f"btrfs quota enable --simple {self._path}"
        )

    def measure(self, name: str) -> int:
        usage = self.usage(name)
        return super().measure(name) if usage is None else usage.used_bytes

    def examine(self, *, scrub: bool | None = None) -> tuple[Check, ...]:
        where = self._path if self._image is None else self._image.path
        return (
            *super().examine(scrub=scrub),
            *device_checks(self._fd, self._image, where),
            # A file system that isn't our image also has other users' files, and its owner checks it.
            *(() if self._image is None else (scrub_check(self._fd, self.space().used_bytes, where, scrub),)),
        )

    def fit(self) -> int:
        return 0 if self._image is None else self._image.grow()

    def trim(self) -> int | None:
        if self._image is None:
            return None
        btrfs.sync(self._fd)  # what was deleted is free with the next commit
        return btrfs.trim(self._fd)

    def sweep(self) -> dict[str, str]:
        left = super().sweep()
        # Only in an image of ours: elsewhere, groups without a tree here belong to other programs' subvolumes.
        if self._quota == "off" or self.config.image is None:
            return left
        if len(self._groups()) > _GROUPS_SPARED + 2 * len(self.names()):
            with self._alone:  # no thread begins to make a tree
                if not self._at_work:
                    self._remove_stale_groups()
        return left

    def _groups(self) -> set[int]:
        """Return the subvolume ids of all quota groups, as sysfs lists them (fs/btrfs/sysfs.c)."""
        try:
            names = os.listdir(f"/sys/fs/btrfs/{btrfs.filesystem_id(self._fd)}/qgroups")
        except FileNotFoundError:
            return set()
        ids = {int(name.removeprefix("0_")) for name in names if name.startswith("0_")}
        return {number for number in ids if number >= _FIRST_SUBVOLUME}

    def _remove_stale_groups(self) -> None:
        """Remove the groups without a tree. The caller makes sure that no thread creates trees."""
        living: set[int] = set()
        groups = self._groups()
        for name in names_in(self._fd):
            with (
                suppress(NotADirectoryError, FileNotFoundError),
                closing(os.open(name, DIRECTORY, dir_fd=self._fd)) as tree,
            ):
                living.add(btrfs.subvolume_id(tree))
        for group in groups - living:
            with suppress(OSError):  # as in _forget
                btrfs.remove_quota_group(self._fd, group)

    def _begin(self, making: str) -> None:
        btrfs.create_subvolume(self._fd, making.encode())
        open_to_all(making, self._fd)

    def _discard(self, name: str) -> None:
        try:
            btrfs.destroy_subvolume(self._fd, name.encode())
        except OSError as error:
            if error.errno not in _NOT_SO:
                raise
            super()._discard(name)

    def _limit(self, tree: int, limit_bytes: int | None) -> None:
        if limit_bytes is not None and self._quota != "off":
            btrfs.set_byte_limit(self._fd, btrfs.subvolume_id(tree), limit_bytes)

    def _group(self, name: str) -> int | None:
        """Return the quota group that becomes stale with the tree's deletion."""
        if self._quota != "off":
            with logged("find the quota group", name), closing(self.open(name)) as tree:
                return btrfs.subvolume_id(tree)
        return None

    def _forget(self, group: int | None) -> None:
        """Remove some of the quota groups of trees that the kernel's cleaner has finished with."""
        if group is not None:
            self._stale.append(group)
        for _ in range(2):
            try:
                stale = self._stale.popleft()
            except IndexError:
                return
            with suppress(OSError):  # a group too many costs a few bytes; a delete that fails for it would cost a tree
                if not btrfs.remove_quota_group(self._fd, stale):
                    self._stale.appendleft(stale)
                    return
