"""Groups of processes with limits, under the caller's own cgroup: version 1, version 2, or both side by side.

Facts: cgroups(7), Documentation/admin-guide/cgroup-v2.rst, cgroup-v1/{memory,pids}.rst and scheduler/sched-bwc.rst.
"""

from __future__ import annotations

import errno
import os
import posixpath
import select
import signal
import time
from collections.abc import Generator, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import cache
from typing import NamedTuple

from paddock.linux import _cgroup_layout as layout
from paddock.linux import _files, mountinfo, proc
from paddock.linux._syscall import failure
from paddock.linux.descriptors import closing
from paddock.linux.undo import UndoStack

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_PAUSE_SECONDS = 0.0005
_KILL_ROUNDS = 100
_HIDDEN = 0
"""The value in cgroup.procs of version 2 for a process outside the reader's pid namespace.

For kill(2) it means the caller's own process group.
"""
_CONTROLLERS = ("memory", "pids", "cpu")
_SHOWN = ("memory", "cpu", "cpuacct", "cpuset")
_PERIOD = 100_000  # microseconds over which processor time is shared out


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


_SWAP = {1: b"/memory.memsw.limit_in_bytes", 2: b"/memory.swap.max"}
_SOCKETS = b"/memory.kmem.tcp.limit_in_bytes"
_SOCKETS_CURRENT = b"/memory.kmem.tcp.usage_in_bytes"
_MEMORY_CURRENT = {1: b"/memory.usage_in_bytes", 2: b"/memory.current"}
_MEMORY_PEAK = {1: b"/memory.max_usage_in_bytes", 2: b"/memory.peak"}
_MEMORY_EVENTS = {1: b"/memory.oom_control", 2: b"/memory.events"}


def _writes(controller: str, version: int, limits: GroupLimits) -> Iterator[tuple[bytes, bytes]]:
    """Which files get which values in a new group, in this order: swap of version 1 includes memory and comes later.

    memory.oom.group stays 0, its default: the kernel ends one process, not all.
    """
    if controller == "memory" and limits.memory_bytes is not None:
        yield (b"/memory.limit_in_bytes" if version == 1 else b"/memory.max"), b"%d" % limits.memory_bytes
    if controller == "memory" and limits.swap_bytes is not None:
        if version == 2:
            yield _SWAP[2], b"%d" % limits.swap_bytes
        elif limits.memory_bytes is not None:
            yield _SWAP[1], b"%d" % (limits.memory_bytes + limits.swap_bytes)
    if controller == "memory" and limits.socket_bytes is not None and version == 1:
        yield _SOCKETS, b"%d" % limits.socket_bytes
    if controller == "pids" and limits.pids is not None:
        yield b"/pids.max", b"%d" % limits.pids
    if controller == "cpu" and limits.cpus is not None:
        quota = max(1000, round(limits.cpus * _PERIOD))  # less than a millisecond is refused
        if version == 1:
            yield b"/cpu.cfs_quota_us", b"%d" % quota  # the period is 100 ms by default
        else:
            yield b"/cpu.max", b"%d %d" % (quota, _PERIOD)


def _apply(tree: Tree, group: bytes, controller: str, limits: GroupLimits) -> None:
    """Set the limits of one controller. Ignore swap and sockets if the kernel has no file for them."""
    for file, value in _writes(controller, tree.version, limits):
        try:
            _files.write(group + file, value, tree.fd)
        except FileNotFoundError:
            if file not in (*_SWAP.values(), _SOCKETS):
                raise


def _limits_swap(tree: Tree) -> bool:
    """Tell whether groups of this memory hierarchy have a limit for swap."""
    return os.path.exists(os.fsencode(tree.path) + _SWAP[tree.version])


def _limits_sockets(tree: Tree) -> bool:
    """Tell whether this memory hierarchy limits the buffers of sockets. Version 2 counts them as memory."""
    return tree.version == 2 or os.path.exists(os.fsencode(tree.path) + _SOCKETS)


def _number(tree: Tree, file: bytes) -> int | None:
    """Return the number in a file, or None if the file is missing."""
    try:
        return int(_files.read(file, tree.fd))
    except FileNotFoundError:
        return None


def _field(tree: Tree, file: bytes, key: bytes) -> int | None:
    """Return the number after `key` in a file of keys and values, or None without either."""
    try:
        return _value(_files.read(file, tree.fd), key)
    except FileNotFoundError:
        return None


def _value(text: bytes, key: bytes) -> int | None:
    words = text.split()
    return int(words[words.index(key) + 1]) if key in words else None


class Joining(NamedTuple):
    """The descriptors for a new process that starts in a group.

    The creator closes them after the clone.

    `clone_into` is for clone3(2). The child itself writes b"0" into each of `tasks`. (A move by pid, or by
    cgroup.procs, waits for an RCU grace period: 8 ms against 0.1.)
    """

    clone_into: int | None
    tasks: tuple[int, ...]

    def close(self) -> None:
        for fd in self.tasks:
            os.close(fd)
        if self.clone_into is not None:
            os.close(self.clone_into)


class Base:
    """The directory `name` in every useful hierarchy.

    It lies below the caller's own cgroup or, in version 2, below the nearest delegated one.
    """

    def __init__(self, trees: list[Tree], missing: dict[str, str]) -> None:
        self.trees = tuple(trees)
        self.by_controller = {controller: tree for tree in trees for controller in tree.controllers}
        self.unified = next((tree for tree in trees if tree.version == 2), None)
        self.kills_at_once = _offers(self.unified, "cgroup.kill")
        """Linux 5.14: no fork outruns it."""
        self.freezes = "freezer" in self.by_controller or _offers(self.unified, "cgroup.freeze")
        self.limits_swap = "memory" in self.by_controller and _limits_swap(self.by_controller["memory"])
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
        return frozenset(held | {"swap"} if self.limits_swap else held)

    def missing(self) -> tuple[str, ...]:
        """One sentence per limit or ability that this machine does not give."""
        lines = dict(self._missing)
        for controller in _CONTROLLERS:
            if controller not in self.by_controller:
                lines.setdefault(controller, f"{controller}: there is no such cgroup controller here")
        if not self.limits_swap:
            lines.setdefault("swap", "swap: the kernel keeps no account of it (boot parameter swapaccount=1)")
        if "memory" in self.by_controller and not _limits_sockets(self.by_controller["memory"]):
            lines.setdefault("sockets", "sockets: the kernel has no ceiling for what TCP and UDP hold in buffers")
        if not self.kills_at_once:
            lines.setdefault("kill", "kill: no cgroup.kill (Linux 5.14, unified tree); processes are killed one by one")
        if not self.freezes:
            lines.setdefault("freeze", "freeze: neither a freezer controller nor cgroup.freeze")
        return tuple(lines[key] for key in sorted(lines))

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
        paths = layout.paths(_files.read(f"/proc/{pid}/cgroup"))
        for tree in self.trees:
            place, _, last = paths["" if tree.version == 2 else min(tree.controllers)].rpartition("/")
            if last != name or place == tree.name:
                continue
            relative = posixpath.relpath(place, tree.name)
            fd = os.open(relative, _DIRECTORY, dir_fd=tree.fd)
            controllers = tree.controllers
            if tree.version == 2:
                offered = _files.read(b"cgroup.controllers", fd).decode().split()
                controllers = frozenset(_CONTROLLERS).intersection(offered)
            trees.append(Tree(tree.version, fd, posixpath.normpath(f"{tree.path}/{relative}"), controllers, place))
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
        self.by_controller = {}
        self.unified = None


class Group:
    """One group of a base. Everything is relative to the base's descriptors."""

    def __init__(self, base: Base, name: str) -> None:
        self.base = base
        self.name = os.fsencode(name)
        if b"/" in self.name or self.name in (b"", b".", b".."):
            raise ValueError(f"not the name of a group: {name!r}")

    def join_descriptors(self) -> Joining:
        """Open the descriptors by which a process joins the group. See `Joining`."""
        unified: int | None = None
        tasks: list[int] = []
        with UndoStack() as undo:
            for tree in self.base.trees:
                if tree.version == 2:
                    unified = os.open(self.name, _DIRECTORY, dir_fd=tree.fd)
                    undo.push(os.close, unified)
                else:
                    tasks.append(os.open(self.name + b"/tasks", os.O_WRONLY | os.O_CLOEXEC, dir_fd=tree.fd))
                    undo.push(os.close, tasks[-1])
        return Joining(unified, tuple(tasks))

    def limit(self, limits: GroupLimits) -> None:
        """Set limits. A limit of None doesn't change."""
        for controller in _CONTROLLERS:
            if tree := self.base.by_controller.get(controller):
                _apply(tree, self.name, controller, limits)

    def socket_bytes(self) -> int:
        """Return the bytes in buffers of TCP and UDP, or 0 if they count as memory (version 2) or have no counter."""
        tree = self.base.by_controller.get("memory")
        if tree is None or tree.version == 2:
            return 0
        return _number(tree, self.name + _SOCKETS_CURRENT) or 0

    def processes(self) -> frozenset[int]:
        """Return the pids of all processes in the group, in any hierarchy, that the caller's pid namespace shows."""
        pids: set[int] = set()
        for tree in self.base.trees:
            with _gone_is_fine():
                pids.update(map(int, _files.read(self.name + b"/cgroup.procs", tree.fd).split()))
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
            self._signal_all(pids)
            told = pids

    def kill_at_once(self) -> None:
        """Send SIGKILL by cgroup.kill, if the kernel has it and the group exists."""
        if self.base.kills_at_once and self.base.unified is not None:
            with _gone_is_fine():
                _files.write(self.name + b"/cgroup.kill", b"1", self.base.unified.fd)

    def _signal_all(self, pids: frozenset[int]) -> None:
        freezer = self.base.by_controller.get("freezer")
        if freezer is not None:  # so that none forks meanwhile; in version 1 a frozen process dies when thawed
            _files.write(self.name + b"/freezer.state", b"FROZEN", freezer.fd)
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if freezer is not None:
            _files.write(self.name + b"/freezer.state", b"THAWED", freezer.fd)

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
            if (freezer := self.base.by_controller.get("freezer")) is not None:
                self._await_frozen_v1(freezer, deadline)
            elif self.base.unified is not None:
                if not self.is_frozen() and self._move_kernel_threads(self.base.unified):
                    # The move of a kernel thread changes no count. Freezing the group anew does.
                    self._set_frozen(False)
                    self._set_frozen(True)
                self._await_event(self.base.unified, b"frozen 1", deadline)
        except OSError:
            with suppress(OSError):
                self._set_frozen(False)
            raise

    def thaw(self) -> None:
        """Lets the group go on."""
        self._set_frozen(False)

    def is_frozen(self) -> bool:
        """Tell whether `freeze` has stopped all its processes. Raises OSError ENOTSUP if neither tree can freeze."""
        if (freezer := self.base.by_controller.get("freezer")) is not None:
            return _files.read(self.name + b"/freezer.state", freezer.fd).startswith(b"FROZEN")
        if self.base.freezes and self.base.unified is not None:
            return b"frozen 1" in _files.read(self.name + b"/cgroup.events", self.base.unified.fd)
        raise failure(errno.ENOTSUP, ("look at cgroup", self.name))

    def _set_frozen(self, frozen: bool) -> None:
        if (freezer := self.base.by_controller.get("freezer")) is not None:
            _files.write(self.name + b"/freezer.state", b"FROZEN" if frozen else b"THAWED", freezer.fd)
        elif self.base.freezes and self.base.unified is not None:
            _files.write(self.name + b"/cgroup.freeze", b"1" if frozen else b"0", self.base.unified.fd)
        else:
            raise failure(errno.ENOTSUP, ("freeze cgroup", self.name))

    def _move_kernel_threads(self, tree: Tree) -> bool:
        """Move the group's kernel threads to the caller's own cgroup. Return whether there were any."""
        threads = [pid for pid in self.processes() if proc.is_kernel_thread(pid)]
        if not threads:
            return False
        own = posixpath.relpath(layout.paths(_files.read("/proc/self/cgroup"))[""], tree.name)
        for pid in threads:
            with suppress(ProcessLookupError):
                _files.write(f"{own}/cgroup.procs", b"%d" % pid, tree.fd)
        return True

    def _await_frozen_v1(self, freezer: Tree, deadline: float) -> None:
        while not _files.read(self.name + b"/freezer.state", freezer.fd).startswith(b"FROZEN"):
            if time.monotonic() >= deadline:
                raise failure(errno.ETIMEDOUT, ("freeze cgroup", self.name))
            time.sleep(_PAUSE_SECONDS)
            # FREEZING lasts while a process forks. Another write includes its children.
            _files.write(self.name + b"/freezer.state", b"FROZEN", freezer.fd)

    def stats(self) -> GroupStats:
        """Counters of the group."""
        base, name = self.base, self.name
        memory, pids = base.by_controller.get("memory"), base.by_controller.get("pids")
        return GroupStats(
            memory_bytes=memory and _number(memory, name + _MEMORY_CURRENT[memory.version]),
            memory_peak_bytes=memory and _number(memory, name + _MEMORY_PEAK[memory.version]),
            oom_kills=memory and _field(memory, name + _MEMORY_EVENTS[memory.version], b"oom_kill"),
            processes=pids and _number(pids, name + b"/pids.current"),
            processes_refused=pids and _field(pids, name + b"/pids.events", b"max"),
            cpu_seconds=self.cpu_seconds(),
        )

    def cpu_seconds(self) -> float | None:
        """Processor time that the group has used."""
        clock = self.base.unified or self.base.by_controller.get("cpuacct")
        if clock is not None and clock.version == 2:
            return _scaled(_field(clock, self.name + b"/cpu.stat", b"usage_usec"), 1e-6)
        return None if clock is None else _scaled(_number(clock, self.name + b"/cpuacct.usage"), 1e-9)

    def remove(self, timeout_seconds: float = 2.0) -> None:
        """Remove the group, if it exists, from every hierarchy after the end of its (killed) processes.

        Raises OSError EBUSY if a process remains at the deadline.
        """
        deadline = time.monotonic() + timeout_seconds
        if self.base.unified is not None:
            with _gone_is_fine(), suppress(TimeoutError):  # rmdir tells
                self._await_event(self.base.unified, b"populated 0", deadline)
        for tree in self.base.trees:
            while not self._rmdir(tree):
                if time.monotonic() >= deadline:
                    raise failure(errno.EBUSY, ("remove cgroup", self.name), f"processes {sorted(self.processes())}")
                time.sleep(_PAUSE_SECONDS)

    def _rmdir(self, tree: Tree) -> bool:
        try:
            os.rmdir(self.name, dir_fd=tree.fd)
        except FileNotFoundError:
            pass
        except OSError as error:
            if error.errno != errno.EBUSY:
                raise
            return False
        return True

    def _await_event(self, tree: Tree, wanted: bytes, deadline: float) -> None:
        """Wait for a line of cgroup.events, whose changes poll(2) reports as POLLPRI."""
        with closing(os.open(self.name + b"/cgroup.events", os.O_RDONLY | os.O_CLOEXEC, dir_fd=tree.fd)) as fd:
            poll = select.poll()
            poll.register(fd, select.POLLPRI)
            while wanted not in os.pread(fd, 4096, 0):
                remaining = deadline - time.monotonic()
                if remaining <= 0:
                    raise failure(errno.ETIMEDOUT, ("wait for", wanted, "of cgroup", self.name))
                poll.poll(remaining * 1000)


class Shown(NamedTuple):
    """One hierarchy as programs in a group look for it: at `name` below /sys/fs/cgroup, empty for version 2.

    `path` holds the groups of a base if it is `grouped`. Else it is the caller's own group.
    """

    version: int
    name: str
    controllers: frozenset[str]
    path: str
    grouped: bool


def shown(base: Base | None) -> list[Shown]:
    """Find the files that show programs their memory and processors.

    Version 2 counts only if no other tree counts memory.
    """
    found: list[Shown] = []
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
        found.append(Shown(version, name, hierarchy.controllers, path, grouped))
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

    _texts: tuple[bytes, ...] = ()
    _counts = (0, 0)

    def __init__(self, pid: int) -> None:
        """Open the counters. Raises OSError if the process has ended, or there are no counters."""
        with _group(pid) as group:
            by = group.base.by_controller
            if not {"memory", "pids"} <= by.keys():
                raise FileNotFoundError(f"the group of process {pid} has no ceilings of memory and processes")
            memory = _MEMORY_EVENTS[by["memory"].version]
            self._files: list[int] = []
            for tree, name in ((by["memory"], memory), (by["pids"], b"/pids.events")):
                self._files.append(os.open(group.name + name, os.O_RDONLY | os.O_CLOEXEC, dir_fd=tree.fd))

    def counts(self) -> tuple[int, int]:
        """Count processes killed for memory, and refused processes.

        Raises OSError if the group doesn't exist any more.
        """
        texts = tuple([os.pread(file, 4096, 0) for file in self._files])
        if texts != self._texts:
            self._texts, self._counts = texts, (_value(texts[0], b"oom_kill") or 0, _value(texts[1], b"max") or 0)
        return self._counts

    def __del__(self) -> None:
        for file in getattr(self, "_files", ()):
            os.close(file)


def is_frozen(pid: int) -> bool:
    """Tell whether another program has frozen the group (its freezer, or `cgroup.freeze`).

    Raises OSError if the process has ended.
    """
    with _group(pid) as group:
        for tree in group.base.trees:
            file, word = (b"/cgroup.events", b"frozen 1") if tree.version == 2 else (b"/freezer.state", b"FROZEN")
            with suppress(FileNotFoundError):
                if word in _files.read(group.name + file, tree.fd):
                    return True
    return False


@contextmanager
def _group(pid: int) -> Generator[Group]:
    """Yield the group of `pid`.

    An engine may put a container below a separate group in only some hierarchies. This uses the ones with the same name
    as the memory's, because a name is unique to one level.
    """
    found = layout.parse(_mounts(), _files.read(f"/proc/{pid}/cgroup"))
    main = next((h for h in found if "memory" in h.controllers), None) or next(
        (h for h in found if h.version == 2), None
    )
    if main is None:
        raise FileNotFoundError(f"no control group of process {pid} is seen here")
    name = posixpath.basename(main.own)
    bound = frozenset[str]().union(*(h.controllers for h in found if h.version == 1))
    with ExitStack() as stack:
        trees: list[Tree] = []
        for hierarchy in found:
            above, last = posixpath.split(hierarchy.own)
            if last != name:
                continue
            fd = os.open(above, _DIRECTORY)
            stack.callback(os.close, fd)
            controllers = hierarchy.controllers if hierarchy.version == 1 else frozenset(_CONTROLLERS) - bound
            trees.append(Tree(hierarchy.version, fd, above, controllers))
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
    return tree is not None and os.access(file, os.F_OK, dir_fd=tree.fd)


def _scaled(value: int | None, unit: float) -> float | None:
    return None if value is None else value * unit
