"""Groups of processes with limits, under the caller's own cgroup: version 1, version 2, or both side by side.

Facts: cgroups(7), Documentation/admin-guide/cgroup-v2.rst, cgroup-v1/{memory,pids}.rst and scheduler/sched-bwc.rst.
"""

from __future__ import annotations

import errno
import os
import posixpath
import signal
import time
from collections.abc import Generator
from contextlib import ExitStack, contextmanager, suppress
from functools import cache
from typing import NamedTuple

from paddock.linux import _cgroup_layout as layout
from paddock.linux import kernel_files, mountinfo, proc
from paddock.linux.descriptors import closing
from paddock.linux.syscall import failure
from paddock.linux.undo import UndoStack

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_WRITE = os.O_WRONLY | os.O_CLOEXEC
_PAUSE_SECONDS = 0.0005
_KILL_ROUNDS = 100
_HIDDEN = 0
"""The value in cgroup.procs of version 2 for a process outside the reader's pid namespace.

For kill(2) it means the caller's own process group.
"""
_CONTROLLERS = ("memory", "pids", "cpu")
_SHOWN = ("memory", "cpu", "cpuacct", "cpuset")
_REASONS = {
    **dict.fromkeys(_CONTROLLERS, "there is no such cgroup controller here"),
    "swap": "the kernel keeps no account of it (boot parameter swapaccount=1)",
    "sockets": "the kernel has no limit for what TCP and UDP hold in buffers",
    "kill": "no cgroup.kill (Linux 5.14, unified tree); processes are killed one by one",
    "freeze": "neither a freezer controller nor cgroup.freeze",
}
_PERIOD = 100_000
"""Microseconds over which the kernel shares out processor time by default."""
_FILES = {
    "memory": ("memory.limit_in_bytes", "memory.max"),
    "memory.swap": ("memory.memsw.limit_in_bytes", "memory.swap.max"),
    "memory.sockets": ("memory.kmem.tcp.limit_in_bytes", ""),
    "memory.sockets_used": ("memory.kmem.tcp.usage_in_bytes", ""),
    "memory.used": ("memory.usage_in_bytes", "memory.current"),
    "memory.peak": ("memory.max_usage_in_bytes", "memory.peak"),
    "memory.events": ("memory.oom_control", "memory.events"),
    "pids": ("pids.max", "pids.max"),
    "pids.used": ("pids.current", "pids.current"),
    "pids.events": ("pids.events", "pids.events"),
    "cpu": ("cpu.cfs_quota_us", "cpu.max"),
    "cpuacct": ("cpuacct.usage", "cpu.stat"),
    "freezer": ("freezer.state", "cgroup.freeze"),
    "freezer.state": ("freezer.state", "cgroup.events"),
}
"""Files of a group in version 1 and in version 2, each under the name of its controller and what it is.

memory.oom.group stays 0, its default: the kernel ends one process, not all.
"""
_OPTIONAL = ("memory.swap", "memory.sockets")
_THAW, _FREEZE, _FROZEN = (b"THAWED", b"0"), (b"FROZEN", b"1"), (b"FROZEN", b"frozen 1")
"""Words of the freezer's files, in version 1 and in version 2."""


class GroupStats(NamedTuple):
    """The consumption of a group, and the number of exceeded limits. None: no counter here."""

    memory_bytes: int | None
    memory_peak_bytes: int | None
    oom_kills: int | None
    processes: int | None
    processes_refused: int | None
    cpu_seconds: float | None


class GroupLimits(NamedTuple):
    """Limits, where None means no limit.

    `swap_bytes` is in addition to `memory_bytes`.

    `socket_bytes` limits the buffers of TCP and UDP in version 1, which doesn't count them otherwise. Version 2 counts
    them as memory.
    """

    memory_bytes: int | None = None
    swap_bytes: int | None = None
    pids: int | None = None
    cpus: float | None = None
    socket_bytes: int | None = None


class Tree(NamedTuple):
    """One hierarchy: descriptor and path of the directory that holds the groups, and the controllers it has.

    `name` is that path as /proc/<pid>/cgroup shows it.
    """

    version: int
    fd: int
    path: str
    controllers: frozenset[str]
    name: str = "/"


def _value(text: bytes, key: bytes) -> int | None:
    """Return the number after `key` in a text of keys and values, or None without it."""
    words = text.split()
    return int(words[words.index(key) + 1]) if key in words else None


class Base:
    """The directory `name` in every useful hierarchy.

    It lies below the caller's own cgroup or, in version 2, below the nearest delegated one.
    """

    def __init__(self, trees: list[Tree], missing: dict[str, str]) -> None:
        self.trees = tuple(trees)
        # With both versions, the controllers of version 1 aren't those of version 2.
        self.by_controller = {controller: tree for tree in trees for controller in tree.controllers}
        self.unified = next((tree for tree in trees if tree.version == 2), None)
        if self.unified is not None:
            self.by_controller["cpuacct"] = self.unified
            if _offers(self.unified, "cgroup.freeze"):
                self.by_controller.setdefault("freezer", self.unified)
        self.kills_at_once = _offers(self.unified, "cgroup.kill")
        """Linux 5.14: no fork outruns it."""
        self.freezes = "freezer" in self.by_controller
        self._missing = missing

    @classmethod
    def open(cls, name: str) -> Base:
        """Make (or find) the directories.

        It never fails for a missing hierarchy: see `missing`.

        With controllers of version 2, this may move the caller into the leaf `<name>.self` beside, because a group with
        processes can't delegate controllers. A caller in that leaf stays there.
        """
        trees: list[Tree] = []
        missing: dict[str, str] = {}
        hierarchies = layout.detect()
        bound = frozenset[str]().union(*(h.controllers for h in hierarchies if h.version == 1))
        spare: set[str] = set()  # what the unified tree does with no controller
        for hierarchy in sorted(hierarchies, key=lambda h: -h.version):
            own = hierarchy.own.removesuffix(f"/{name}.self").rstrip("/")
            path = f"{own}/{name}"
            controllers = hierarchy.controllers - spare
            try:
                if hierarchy.version == 2:
                    wanted = frozenset(_CONTROLLERS) - bound
                    path, controllers = layout.delegated(own, hierarchy.top, name, wanted, missing)
                elif controllers:
                    layout.make_directory(path)
                else:
                    continue
                known_as = posixpath.normpath(posixpath.join(hierarchy.path, posixpath.relpath(path, hierarchy.own)))
                tree = Tree(hierarchy.version, os.open(path, _DIRECTORY), path, controllers, known_as)
            except OSError as error:
                reason = f"{error.strerror} ({os.fsdecode(error.filename or path)})"
                if error.errno in (errno.EACCES, errno.EPERM):
                    reason = "the control group of this program belongs to another user"
                missing.update((c, f"{c}: {reason}") for c in hierarchy.controllers or ("kill",))
                continue
            trees.append(tree)
            if tree.version == 2:
                spare = {"cpuacct", "freezer"} if _offers(tree, "cgroup.freeze") else {"cpuacct"}
        return cls(trees, missing)

    @property
    def enforced(self) -> frozenset[str]:
        """Which of "memory", "swap", "pids", "cpu" hold here."""
        held = {controller for controller in _CONTROLLERS if controller in self.by_controller}
        return frozenset(held | {"swap"} if _offers(*self.find("memory.swap")) else held)

    def find(self, name: str) -> tuple[Tree | None, str]:
        """Return the hierarchy of a file in `_FILES`, and its name there. Both are empty for an unknown file."""
        tree = self.by_controller.get(name.partition(".")[0])
        return tree, "" if tree is None else _FILES[name][tree.version - 1]

    def missing(self) -> tuple[str, ...]:
        """One sentence per limit or ability that this machine does not give."""
        memory = self.by_controller.get("memory")
        given = {*self.enforced, *(("kill",) if self.kills_at_once else ()), *(("freeze",) if self.freezes else ())}
        if memory is None or memory.version == 2 or _offers(*self.find("memory.sockets")):
            given.add("sockets")
        reasons = {name: f"{name}: {why}" for name, why in _REASONS.items() if name not in given} | self._missing
        return tuple(reasons[name] for name in sorted(reasons))

    def create(self, name: str, limits: GroupLimits) -> Group:
        """Return a group with its limits set. All or nothing. FileExistsError if there is one of that name."""
        group = Group(self, name)
        path = group.name
        with UndoStack() as undo:
            strict = os.umask(0o022)  # its own processes may read of it what it uses
            undo.push(os.umask, strict)
            for tree in self.trees:
                os.mkdir(path, 0o755, dir_fd=tree.fd)
                undo.push(os.rmdir, path, dir_fd=tree.fd)
            os.umask(strict)
            group.limit(limits)
        return group

    def group(self, name: str) -> Group:
        """Return the existing group of that name, without a check."""
        return Group(self, name)

    def of_process(self, pid: int, name: str) -> Base:
        """Return the base that holds the group `name` of `pid`: this one, or that of an earlier process, opened anew.

        Another session or unit may have been the place of that. Relative to this one's descriptors, since the caller
        may have let go of the mounts. OSError.
        """
        trees: list[Tree] = []
        paths = layout.paths(kernel_files.read(f"/proc/{pid}/cgroup"))
        for tree in self.trees:
            place, _, last = paths["" if tree.version == 2 else min(tree.controllers)].rpartition("/")
            if last == name and place != tree.name:
                relative = posixpath.relpath(place, tree.name)
                fd = os.open(relative, _DIRECTORY, dir_fd=tree.fd)
                path = posixpath.normpath(f"{tree.path}/{relative}")
                controllers = _offered(fd) if tree.version == 2 else tree.controllers
                trees.append(Tree(tree.version, fd, path, controllers, place))
        return Base(trees, {}) if trees else self

    def children(self) -> frozenset[str]:
        """Return the names of all groups, also of ones that remain in only one hierarchy."""
        names: set[str] = set()
        for tree in self.trees:
            with os.scandir(tree.fd) as entries:
                names.update(entry.name for entry in entries if entry.is_dir(follow_symlinks=False))
        return frozenset(names)

    def remove(self) -> None:
        """Remove the directories themselves, which must have no groups (else ENOTEMPTY or EBUSY), and close."""
        for tree in self.trees:
            # Not by its path: the caller may have unmounted it since.
            with closing(os.open("..", _DIRECTORY, dir_fd=tree.fd)) as parent:
                os.rmdir(os.path.basename(tree.path), dir_fd=parent)
        self.close()

    def close(self) -> None:
        for tree in self.trees:
            os.close(tree.fd)
        self.trees = ()


class Group:
    """One group of a base. Everything is relative to the base's descriptors."""

    def __init__(self, base: Base, name: str) -> None:
        self.base = base
        self.name = name
        if "/" in name or name in ("", ".", ".."):
            raise ValueError(f"not the name of a group: {name!r}")

    @contextmanager
    def joining(self) -> Generator[list[int]]:
        """Open the descriptors by which a new process starts in the group.

        The last one is for clone3(2), if there is a unified tree. The child itself writes b"0" into each of the others.
        (A move by pid, or by cgroup.procs, waits for an RCU grace period: 8 ms against 0.1.)
        """
        with ExitStack() as opened:
            joining: list[int] = []
            for tree in sorted(self.base.trees, key=lambda tree: tree.version):
                file, flags = (self.name, _DIRECTORY) if tree.version == 2 else (f"{self.name}/tasks", _WRITE)
                joining.append(opened.enter_context(closing(os.open(file, flags, dir_fd=tree.fd))))
            yield joining

    def limit(self, limits: GroupLimits) -> None:
        """Set limits. A limit of None doesn't change."""
        values = {
            "memory": limits.memory_bytes,
            "memory.swap": limits.swap_bytes,
            "memory.sockets": limits.socket_bytes,
            "pids": limits.pids,
            # The kernel refuses less than a millisecond.
            "cpu": None if limits.cpus is None else max(1000, round(limits.cpus * _PERIOD)),
        }
        for name, value in values.items():
            tree, file = self.base.find(name)
            if value is None or tree is None or not file:
                continue
            if name == "memory.swap" and tree.version == 1:  # swap of version 1 includes memory, and so comes later
                value += limits.memory_bytes or 0
            try:
                kernel_files.write(f"{self.name}/{file}", b"%d" % value, tree.fd)
            except FileNotFoundError:
                if name not in _OPTIONAL:
                    raise

    def _number(self, name: str, key: bytes = b"") -> int | None:
        """Return the number in a file, or after `key` in it. None if either is missing."""
        tree, file = self.base.find(name)
        if tree is None or not file:
            return None
        try:
            text = kernel_files.read(f"{self.name}/{file}", tree.fd)
        except FileNotFoundError:
            return None
        return _value(text, key) if key else int(text)

    def socket_bytes(self) -> int:
        """Return the bytes in buffers of TCP and UDP, or 0 if they count as memory (version 2) or have no counter."""
        return self._number("memory.sockets_used") or 0

    def processes(self) -> frozenset[int]:
        """Return the pids of all processes in the group, in any hierarchy, that the caller's pid namespace shows."""
        pids: set[int] = set()
        for tree in self.base.trees:
            with _gone_is_fine():
                pids.update(map(int, kernel_files.read(f"{self.name}/cgroup.procs", tree.fd).split()))
        return frozenset(pids - {_HIDDEN})

    def kill(self) -> None:
        """Send SIGKILL to every process of the group, if it exists.

        `remove` waits for their end.

        It uses cgroup.kill, which also catches processes during a fork. Then, or without it, it kills one by one, until
        all have got the signal: that alone reaches a process outside the unified tree. A family that forks faster, on a
        kernel without cgroup.kill, ends with the pid 1 of its namespace.
        """
        self.kill_at_once()
        told: frozenset[int] = frozenset()
        for _ in range(_KILL_ROUNDS):
            pids = self.processes()
            if not pids - told:
                break
            if self.base.freezes:  # so that none forks meanwhile; in version 1 a frozen process dies when thawed
                self._set_frozen(True)
            for pid in pids:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            if self.base.freezes:
                self._set_frozen(False)
            told = pids

    def kill_at_once(self) -> None:
        """Send SIGKILL by cgroup.kill, if the kernel has it and the group exists."""
        if self.base.kills_at_once and self.base.unified is not None:
            with _gone_is_fine():
                kernel_files.write(f"{self.name}/cgroup.kill", b"1", self.base.unified.fd)

    def freeze(self, timeout_seconds: float = 2.0) -> None:
        """Stop every process of the group where it is. Return when all have stopped.

        Kernel threads leave a group of version 2: with one in it, the kernel never counts the group as frozen. Before
        Linux 6.13, KVM puts one beside each virtual machine.

        On any OSError all processes go on: TimeoutError if one did not stop in time, ENOTSUP where neither tree can
        freeze.
        """
        deadline = time.monotonic() + timeout_seconds
        try:
            self._set_frozen(True)
            if not self.is_frozen() and self._move_kernel_threads():
                # The move of a kernel thread changes no count. Freezing the group anew does.
                self._set_frozen(False)
                self._set_frozen(True)
            while not self.is_frozen():
                if time.monotonic() >= deadline:
                    raise failure(errno.ETIMEDOUT, ("freeze cgroup", self.name))
                time.sleep(_PAUSE_SECONDS)
                # Version 1 says FREEZING while a process forks. Another write includes its children.
                self._set_frozen(True)
        except OSError:
            with suppress(OSError):
                self._set_frozen(False)
            raise

    def thaw(self) -> None:
        """Lets the group go on."""
        self._set_frozen(False)

    def is_frozen(self) -> bool:
        """Tell whether `freeze` has stopped all its processes. Raises OSError ENOTSUP if neither tree can freeze."""
        tree, path = self._freezer("freezer.state")
        return _FROZEN[tree.version - 1] in kernel_files.read(path, tree.fd)

    def _set_frozen(self, frozen: bool) -> None:
        tree, path = self._freezer("freezer")
        kernel_files.write(path, (_FREEZE if frozen else _THAW)[tree.version - 1], tree.fd)

    def _freezer(self, name: str) -> tuple[Tree, str]:
        tree, file = self.base.find(name)
        if tree is None:
            raise failure(errno.ENOTSUP, ("freeze cgroup", self.name))
        return tree, f"{self.name}/{file}"

    def _move_kernel_threads(self) -> bool:
        """Move the group's kernel threads to the caller's own cgroup of version 2. Return whether there were any."""
        tree = self.base.by_controller["freezer"]
        threads = [pid for pid in self.processes() if proc.is_kernel_thread(pid)] if tree.version == 2 else []
        for pid in threads:
            own = posixpath.relpath(layout.paths(kernel_files.read("/proc/self/cgroup"))[""], tree.name)
            with suppress(ProcessLookupError):
                kernel_files.write(f"{own}/cgroup.procs", b"%d" % pid, tree.fd)
        return bool(threads)

    def stats(self) -> GroupStats:
        """Counters of the group."""
        return GroupStats(
            memory_bytes=self._number("memory.used"),
            memory_peak_bytes=self._number("memory.peak"),
            oom_kills=self._number("memory.events", b"oom_kill"),
            processes=self._number("pids.used"),
            processes_refused=self._number("pids.events", b"max"),
            cpu_seconds=self.cpu_seconds(),
        )

    def cpu_seconds(self) -> float | None:
        """Processor time that the group has used."""
        if self.base.unified is not None:
            microseconds = self._number("cpuacct", b"usage_usec")
            return None if microseconds is None else microseconds * 1e-6
        nanoseconds = self._number("cpuacct")
        return None if nanoseconds is None else nanoseconds * 1e-9

    def remove(self, timeout_seconds: float = 2.0) -> None:
        """Remove the group, if it exists, from every hierarchy after the end of its (killed) processes.

        Raises OSError EBUSY if a process remains at the deadline.
        """
        deadline = time.monotonic() + timeout_seconds
        for tree in self.base.trees:
            while True:
                try:
                    os.rmdir(self.name, dir_fd=tree.fd)
                except FileNotFoundError:
                    pass
                except OSError as error:
                    if error.errno != errno.EBUSY:
                        raise
                    if time.monotonic() < deadline:
                        time.sleep(_PAUSE_SECONDS)
                        continue
                    what = f"processes {sorted(self.processes())}"
                    raise failure(errno.EBUSY, ("remove cgroup", self.name), what) from None
                break


class ShownHierarchy(NamedTuple):
    """One hierarchy as programs in a group look for it: at `name` below /sys/fs/cgroup, empty for version 2.

    `path` holds the groups of a base if it is `grouped`. Else it is the caller's own group.
    """

    version: int
    name: str
    controllers: frozenset[str]
    path: str
    grouped: bool


def shown(base: Base | None) -> list[ShownHierarchy]:
    """Find the files that show programs their memory and processors.

    Version 2 counts only if no other tree counts memory.
    """
    found: list[ShownHierarchy] = []
    hierarchies = layout.detect(_SHOWN)
    version = 1 if any("memory" in hierarchy.controllers for hierarchy in hierarchies) else 2
    for hierarchy in hierarchies:
        if hierarchy.version != version or not (version == 2 or hierarchy.controllers):
            continue
        name, path, grouped = "" if version == 2 else posixpath.basename(hierarchy.top), hierarchy.own, False
        for tree in () if base is None else base.trees:
            held = {"memory", "cpu"} <= tree.controllers if version == 2 else tree.controllers & hierarchy.controllers
            if tree.version == version and held:
                path, grouped = tree.path, True
        found.append(ShownHierarchy(version, name, hierarchy.controllers, path, grouped))
    return found


# -- the group of any process


def stats(pid: int) -> GroupStats:
    """Return the stats of a process's group.

    None: no counter, or not visible here. Raises OSError if the process has ended.
    """
    with _group(pid) as group:
        return group.stats()


class Refusals:
    """How often the kernel has met a process's group at its limits. Its files stay open: each exec asks."""

    def __init__(self, pid: int) -> None:
        """Open the counters. Raises OSError if the process has ended, or lacks counters."""
        with _group(pid) as group:
            if not {"memory", "pids"} <= group.base.by_controller.keys():
                raise FileNotFoundError(f"the group of process {pid} has no limits of memory and processes")
            self._files: list[int] = []
            for tree, file in map(group.base.find, ("memory.events", "pids.events")):
                assert tree is not None
                path = f"{group.name}/{file}"
                self._files.append(os.open(path, os.O_RDONLY | os.O_CLOEXEC, dir_fd=tree.fd))

    def counts(self) -> tuple[int, int]:
        """Count processes killed for memory, and refused processes.

        Raises OSError if the group doesn't exist any more.
        """
        memory, pids = (os.pread(file, 4096, 0) for file in self._files)
        return _value(memory, b"oom_kill") or 0, _value(pids, b"max") or 0

    def __del__(self) -> None:
        for file in getattr(self, "_files", ()):
            os.close(file)


def is_frozen(pid: int) -> bool:
    """Tell whether another program has frozen the group (its freezer, or `cgroup.freeze`).

    Raises OSError if the process has ended.
    """
    with _group(pid) as group:
        alone = [Base([tree], {}) for tree in group.base.trees]  # another program may have used either version's
        return any(base.freezes and base.group(group.name).is_frozen() for base in alone)


@contextmanager
def _group(pid: int) -> Generator[Group]:
    """Yield the group of `pid`.

    An engine may put a container below a separate group in only some hierarchies. This uses the ones with the same name
    as the memory's, because a name is unique to one level.
    """
    found = layout.parse(_mounts(), kernel_files.read(f"/proc/{pid}/cgroup"))
    main = max(found, key=lambda one: ("memory" in one.controllers, one.version), default=None)
    if main is None:
        raise FileNotFoundError(f"no control group of process {pid} is seen here")
    name = posixpath.basename(main.own)
    with ExitStack() as stack:
        trees: list[Tree] = []
        for above, hierarchy in ((posixpath.dirname(one.own), one) for one in found if one.own.endswith(f"/{name}")):
            fd = stack.enter_context(closing(os.open(above, _DIRECTORY)))
            trees.append(Tree(hierarchy.version, fd, above, hierarchy.controllers or _offered(fd)))
        yield Group(Base(trees, {}), name)


@cache
def _mounts() -> list[mountinfo.MountInfo]:
    """Return the mounts of hierarchies. They exist since boot, and the first exec of every sandbox needs them."""
    return mountinfo.read(fstype="cgroup")


@contextmanager
def _gone_is_fine() -> Generator[None, None, None]:
    """Ignore errors about a removed group: a missing file, or ENODEV for an open file of it."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOENT, errno.ENODEV):
            raise


def _offers(tree: Tree | None, file: str) -> bool:
    return tree is not None and file != "" and os.access(file, os.F_OK, dir_fd=tree.fd)


def _offered(directory: int) -> frozenset[str]:
    """Return the controllers that a group of version 2 may hand down. Those of version 1 aren't among them."""
    return frozenset(_CONTROLLERS).intersection(kernel_files.read("cgroup.controllers", directory).decode().split())
