"""The machine's /usr as sandboxes see it: the same files, but inodes of their own.

On a plain bind mount inotify would tell a sandbox which programs the machine and its neighbours start, and a lock or a
syncfs would reach them. An overlay's inodes are its own; the content, and so the memory, stays shared.
"""

from __future__ import annotations

import errno
import os
from collections import OrderedDict
from dataclasses import dataclass, field
from itertools import islice

from paddock.linux import mounts, overlay, proc
from paddock.linux.descriptors import closing

_RENEW_SECONDS = 30.0
_FLAGS = mounts.RDONLY | mounts.NOSUID | mounts.NODEV


@dataclass(slots=True)
class Usr:
    """`empty` is an empty directory: an overlay that is only read has two layers at least.

    It is a mount of its own, so that a sandbox reads no path of the machine in its table of mounts. Where the kernel
    neither layers nor copies mounts that are attached nowhere (before 6.15), it is not, and each sandbox has its own.
    """

    empty: int
    shared: bool = True
    _of_slots: OrderedDict[int, tuple[int, float]] = field(default_factory=OrderedDict[int, tuple[int, float]])
    """By slot, the oldest first: the overlay and when it was made."""

    def mount(self, slot: int | None, late: list[int]) -> int:
        """A detached mount for one sandbox. OSError. What is to be closed later, that mount too, is put on `late`.

        Those who have a range of ids one after the other have an overlay in common, so that its lookups stay warm:
        for a while, since it does not notice that the machine's packages are replaced.
        """
        late.append(self._mount(slot, late))
        return late[-1]

    def _mount(self, slot: int | None, late: list[int]) -> int:
        if slot is None:
            return self._ordinary()
        if not self.shared:
            return self._overlay()
        now = proc.boottime()
        # Others, too: nobody may have their range for long, and each file system that there is costs the kernel memory
        # and time for every control group. Two of them, since closing a mount takes a while.
        for number in (slot, *islice(self._of_slots, 2)):
            kept, made = self._of_slots.get(number, (-1, now))
            if now - made > _RENEW_SECONDS:
                del self._of_slots[number]
                late.append(kept)
        if slot not in self._of_slots:
            self._of_slots[slot] = (self._overlay(), now)
        return mounts.open_tree(b"", self._of_slots[slot][0])

    def _ordinary(self) -> int:
        try:
            return self._overlay(("userxattr", None))
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
        # Something is mounted below /usr, which may not be looked under. `doctor` says what that means.
        usr = mounts.open_tree(b"/usr", recursive=True)
        mounts.set_attributes(usr, set=_FLAGS, recursive=True)
        return usr

    def _overlay(self, *options: mounts.Option) -> int:
        with closing(os.open(b"/usr", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)) as usr:
            return overlay.mount((usr, self.empty), None, None, options, _FLAGS)
