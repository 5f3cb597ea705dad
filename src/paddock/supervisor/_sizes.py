"""Show a sandbox its own size in place of the machine's: files over /proc, a small /sys, control groups, processors.

Some files of /proc tell of the machine and of other sandboxes. All sandboxes get the same content in their place.

The kernel shows every sandbox the machine's memory and processors, and programs size heaps and pools by them. These
files state the limits instead. The sandbox's control groups, the kernel's own, show the use.
"""

from __future__ import annotations

import os
from contextlib import suppress
from typing import NamedTuple

from paddock.linux import cgroups, masks, mounts, sizes
from paddock.linux.cgroups import ShownHierarchy
from paddock.linux.descriptors import closing
from paddock.supervisor.plan import JailPlan

MOST = 64
_FLAGS = mounts.RDONLY | mounts.NOSUID | mounts.NODEV | mounts.NOEXEC
_GROUPS = "fs/cgroup"


def build(place: bytes) -> None:
    """Mount at `place` in this mount namespace the files that cover those of /proc in all sandboxes."""
    fd = mounts.fs_mount("tmpfs", (("mode", "0755"), ("size", "64k")))
    strict = os.umask(0)
    try:
        os.mkdir(masks.NOTHING, 0o555, dir_fd=fd)
        for name, text in masks.contents().items():
            file = os.open(name, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o444, dir_fd=fd)
            os.write(file, text.encode())
            os.close(file)
        mounts.set_attributes(fd, set=_FLAGS)
        mounts.move_mount(fd, mounts.AT_FDCWD, place)
    finally:
        os.umask(strict)
        os.close(fd)


class SizeMounts(NamedTuple):
    """Hold detached mounts: of files of /proc, by name; of /sys; and of control groups, by their place in it."""

    proc: tuple[tuple[bytes, int], ...]
    sys: int
    groups: tuple[tuple[bytes, int], ...]
    cpus: tuple[int, ...] | None
    """The processors that its processes start on; None: any. They may leave: the group's quota limits them."""

    def descriptors(self) -> list[int]:
        return [*(fd for _, fd in self.proc), self.sys, *(fd for _, fd in self.groups)]


class _Kept(NamedTuple):
    proc: tuple[tuple[bytes, int], ...]
    sys: int


class Sizes:
    """Make and keep these files, one set for all sandboxes with the same limits on the same processors."""

    def __init__(self, place: str, groups: cgroups.Base | None) -> None:
        """Prepare `place`, a directory of the supervisor's. The caller still has all the machine's mounts."""
        self._place = f"{place}/files"
        self._possible = sizes.possible()
        self._processors = sizes.Processors()
        self._kept: dict[tuple[object, ...], _Kept] = {}
        self._writable = -1
        self._views: list[tuple[ShownHierarchy, str]] = []
        os.makedirs(self._place, 0o700, exist_ok=True)
        for shown in cgroups.shown(groups):
            view = f"{place}/groups/{shown.name}"
            os.makedirs(view, 0o700, exist_ok=True)
            with suppress(OSError):  # a tree that can't be shown once more is left out
                mounts.bind(os.fsencode(shown.path), mounts.AT_FDCWD, os.fsencode(view), attributes=_FLAGS)
                self._views.append((shown, view))

    def make(self, plan: JailPlan, group: cgroups.Group | None, to_close: list[int]) -> SizeMounts:
        """Choose processors for the sandbox of `plan`, make its files. Adds to `to_close`. Raises OSError."""
        cpus, all_of_them = self._processors.choose(plan.cpus)
        key = (plan.memory_bytes, plan.swap_bytes, plan.cpus, plan.processes, cpus)
        kept = self._kept.get(key) or self._keep(key, plan, cpus, all_of_them)

        def copy(path: bytes, fd: int = mounts.AT_FDCWD, *, recursive: bool = False) -> int:
            to_close.append(mounts.open_tree(path, fd, recursive=recursive))
            return to_close[-1]

        return SizeMounts(
            proc=tuple((name, copy(b"", fd)) for name, fd in kept.proc),
            sys=copy(b"", kept.sys, recursive=True),
            groups=tuple(
                (os.fsencode(f"{_GROUPS}/{shown.name}"), copy(os.fsencode(f"{view}/{group.name}")))
                for shown, view in self._views
                if group is not None and shown.grouped
            ),
            cpus=None if all_of_them else cpus,
        )

    def _keep(self, key: tuple[object, ...], plan: JailPlan, cpus: tuple[int, ...], all_of_them: bool) -> _Kept:
        if self._writable < 0 or len(self._kept) >= MOST:
            self._begin()
        name = str(len(self._kept))
        proc_files = sizes.proc_files(plan.memory_bytes, plan.swap_bytes, cpus, all_of_them=all_of_them)
        files = proc_files | sizes.system(cpus, self._possible)
        covers = [(shown, view) for shown, view in self._views if not shown.grouped]
        for shown, _ in covers:
            group_files = sizes.group(
                shown,
                memory=plan.memory_bytes,
                swap=plan.swap_bytes,
                cpus=plan.cpus,
                pids=plan.processes,
                runs_on=cpus,
            )
            files |= {f"cover/{shown.name}/{file}": text for file, text in group_files.items()}
        self._fill(name, files)
        home = f"{self._place}/{name}"
        for shown, view in covers:  # of the group that it is in nothing is seen but that it is one (cgroups(7))
            above = os.fsencode(f"{home}/sys/{_GROUPS}/{shown.name}")
            mounts.bind(os.fsencode(view), mounts.AT_FDCWD, above)
            mounts.bind(os.fsencode(f"{home}/cover/{shown.name}"), mounts.AT_FDCWD, above)
        self._kept[key] = kept = _Kept(
            proc=tuple((os.fsencode(file), _open(f"{home}/{file}")) for file in proc_files), sys=_open(f"{home}/sys")
        )
        return kept

    def _begin(self) -> None:
        """Release all kept files; sandboxes have their own mounts of them."""
        for fd in (fd for kept in self._kept.values() for fd in (kept.sys, *(fd for _, fd in kept.proc))):
            os.close(fd)
        self._kept.clear()
        place = os.fsencode(self._place)
        if self._writable >= 0:
            os.close(self._writable)
            self._writable = -1
            mounts.umount(place, detach=True)
        with closing(mounts.fs_mount("tmpfs", (("mode", "0755"), ("size", "16m")))) as made:
            mounts.move_mount(made, mounts.AT_FDCWD, place)
            self._writable = mounts.open_tree(place)
            mounts.set_attributes(made, set=_FLAGS)

    def _fill(self, name: str, files: dict[str, str]) -> None:
        root = f"/proc/self/fd/{self._writable}/{name}"
        more = [f"{part}/{shown.name}" for shown, _ in self._views for part in (f"sys/{_GROUPS}", "cover")]
        sizes.lay(root, files, self._possible, more)


def _open(path: str) -> int:
    return os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
