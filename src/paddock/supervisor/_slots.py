"""Give running sandboxes ranges of ids, and show the pool and the machine's /usr through each range.

Sandboxes see the content of /usr but their own inodes. On a plain bind mount inotify would show which programs the
machine and its neighbours start, and a lock or syncfs would reach them. An overlay has its own inodes; content, and so
memory, stays shared.
"""

from __future__ import annotations

import errno
import heapq
import os
from collections import OrderedDict
from collections.abc import Generator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from itertools import islice

from paddock.linux import fsids, mounts, namespaces, overlay, proc
from paddock.linux.descriptors import closing
from paddock.linux.namespaces import IdMap
from paddock.supervisor.layout import ID_COUNT, MOST_RANGES, TREE_ID_BASE, range_base

ENGINE = -1
"""The machine's first ids, for a container whose engine maps none."""
_RENEW_SECONDS = 30.0
_USR_FLAGS = mounts.RDONLY | mounts.NOSUID | mounts.NODEV


class NoSlot(OSError):
    """Every range of ids is in use: EUSERS, which no system call of a create returns."""


@dataclass(slots=True)
class Slots:
    """Hand out ranges. Range `n` is `layout.range_base(n)` and the 65535 ids after it.

    Each used range has a detached mount of the whole pool that shows its files as that range's own. A sandbox's layers
    are opened below it, so that a create makes no id-mapped mount. Before Linux 6.15 the layers of an overlay must be
    attached: then they lie in directories of `place`, and every clone copies each of them. `empty` is an empty
    directory: a read-only overlay needs two layers. `below_usr` holds only that directory, `local`: not every machine
    has a /usr/local. Both are of a separate mount where possible, so that a sandbox's mount table shows no path of the
    machine.
    """

    pool: int
    place: bytes | None = None
    empty: int = -1
    below_usr: int = -1
    _free: list[int] = field(default_factory=list[int])
    _next: int = 0
    _views: dict[int | None, int] = field(default_factory=dict[int | None, int])
    _usr: OrderedDict[int, tuple[int, float]] = field(default_factory=OrderedDict[int, tuple[int, float]])
    """The overlay of each range and when it was made, oldest first."""

    def take(self) -> int:
        """Return the lowest free range. Raises NoSlot."""
        if self._free:
            return heapq.heappop(self._free)
        if self._next >= MOST_RANGES:
            raise NoSlot(errno.EUSERS, f"all {MOST_RANGES} ranges of ids are in use")
        self._next += 1
        return self._next - 1

    def reserve(self, slot: int) -> None:
        """Mark the range of a sandbox that an earlier supervisor made."""
        while self._next <= slot:
            heapq.heappush(self._free, self._next)
            self._next += 1
        self._free.remove(slot)
        heapq.heapify(self._free)

    def give_back(self, slot: int) -> None:
        heapq.heappush(self._free, slot)

    def base(self, slot: int) -> int:
        return 0 if slot == ENGINE else range_base(slot)

    def acting(self, slot: int | None) -> AbstractContextManager[None]:
        """Create files as root of the sandbox within the block: overlayfs gives what it creates in an upper layer to
        the mounter, who must be an id of the range."""
        return nullcontext() if slot is None else fsids.acting_as(self.base(slot), self.base(slot))

    def view(self, slot: int | None) -> int:
        """Return a descriptor of the pool, seen with the ids of `slot`, or with its own for None. Raises OSError.

        It stays the supervisor's. It is a separate mount in either case, so that a sandbox's mount table shows no path
        of the host.
        """
        if slot is None and None not in self._views:
            self._views[None] = self._settle("own", mounts.open_tree(b"", self.pool))
        if slot is not None and slot not in self._views:
            maps = (IdMap(TREE_ID_BASE, self.base(slot), ID_COUNT),)
            with closing(namespaces.id_mapping_namespace(maps, maps)) as owner:
                view = mounts.open_tree(b"", self.pool)
                try:
                    mounts.set_attributes(view, set=mounts.NOSUID | mounts.NODEV, userns_fd=owner)
                except OSError:
                    os.close(view)
                    raise
            self._views[slot] = self._settle(str(slot), view)
        return self._views[slot]

    @contextmanager
    def attached(self, mount: int) -> Generator[None]:
        """Allow the detached `mount` to be a layer of an overlay within the block. The overlay keeps it."""
        if self.place is None:
            yield
            return
        self._settle("passing", mount)
        try:
            yield
        finally:
            mounts.umount(os.path.join(self.place, b"passing"), detach=True)

    def _settle(self, name: str, view: int) -> int:
        if self.place is not None:
            path = os.path.join(self.place, name.encode())
            os.makedirs(path, 0o700, exist_ok=True)
            mounts.move_mount(view, mounts.AT_FDCWD, path)
        return view

    # -- /usr

    def usr(self, slot: int | None, to_close: list[int]) -> int:
        """Return a detached mount of /usr for one sandbox. Adds to `to_close` what to close later. Raises OSError.

        Sandboxes that use a range one after the other share an overlay, so that its lookups stay warm. It is renewed
        after a while, because it doesn't notice when the machine's packages are replaced.
        """
        to_close.append(self._detached_usr(slot, to_close))
        return to_close[-1]

    def _detached_usr(self, slot: int | None, to_close: list[int]) -> int:
        if slot is None:
            return self._ordinary_usr()
        if self.place is not None:
            return self._usr_overlay()
        now = proc.boottime()
        # Old ones of other ranges too: no sandbox may use them for long, and each file system costs the kernel memory
        # and time for every control group. Two of them, since closing a mount takes a while.
        for number in (slot, *islice(self._usr, 2)):
            kept, created = self._usr.get(number, (-1, now))
            if now - created > _RENEW_SECONDS:
                del self._usr[number]
                to_close.append(kept)
        if slot not in self._usr:
            self._usr[slot] = (self._usr_overlay(), now)
        return mounts.open_tree(b"", self._usr[slot][0])

    def _ordinary_usr(self) -> int:
        try:
            return self._usr_overlay(("userxattr", None))
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
        # Something is mounted below /usr, which may not be looked under. `doctor` says what that means.
        usr = mounts.open_tree(b"/usr", recursive=True)
        mounts.set_attributes(usr, set=_USR_FLAGS, recursive=True)
        return usr

    def _usr_overlay(self, *options: mounts.Option) -> int:
        with closing(os.open(b"/usr", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)) as usr:
            return overlay.mount((usr, self.below_usr), None, None, options, _USR_FLAGS)
