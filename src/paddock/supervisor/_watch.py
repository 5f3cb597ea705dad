"""Enforce limits that the kernel doesn't enforce here, by looking some times a second.

These limits are soft: between two looks a sandbox may use more. So capabilities call them `watched`. All measured
values are an attacker's and change meanwhile: a measurement may be wrong, but it may not fail or block.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Generator, Mapping
from typing import Any, NamedTuple

from paddock.linux import btrfs, openat2, pidfd, proc, sock_diag
from paddock.linux.descriptors import closing
from paddock.supervisor._context import SupervisorContext
from paddock.supervisor._records import Ended, Record
from paddock.supervisor._spare import SOCKET_BYTES
from paddock.supervisor._supervised import Count, Supervised

MEMORY_SECONDS = 0.25
SLICE_SECONDS = 0.02  # between two steps of a walk, each of about a millisecond
SHARE = 10  # looking takes at most this part of the supervisor's time
OURS = 8  # processes of a sandbox that serve it: pid 1, agents, and what an agent is just starting
LOOKS = 3  # so often in a row over its memory, and killing single processes has not helped
MOST_SOCKET_BYTES = 4 * SOCKET_BYTES
_AT_ONCE = 20
_NEXT_TO_NOTHING_SECONDS = 0.002
_ENTRIES_AT_ONCE = 200  # about a millisecond's worth
_LONGEST_PATH = 4000
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class Watch:
    """Look at all sandboxes in turn. `end(sandbox, ended)` ends one. `memory` and `disk` say whether to watch them at
    all."""

    def __init__(
        self, context: SupervisorContext, sandboxes: Mapping[str, Supervised], end: Callable[..., None]
    ) -> None:
        self._context, self._sandboxes, self._end = context, sandboxes, end
        self.memory = not context.held >= {"memory", "pids"} and proc.shows_children()
        self._inodes = context.root_mode and btrfs.is_btrfs(context.pool)  # btrfs itself limits bytes only
        self._sockets = context.groups is not None
        self.disk = not self._inodes
        self._memory_at = self._disk_at = self._next_at = 0.0
        self._queue: list[str] = []

    def kinds(self) -> list[str]:
        return [kind for kind, looked_at in (("memory", self.memory), ("disk", self.disk)) if looked_at]

    def next(self) -> float | None:
        """Return when to look next, in seconds of CLOCK_BOOTTIME."""
        if not self._sandboxes:
            return None
        times = [self._memory_at] if self.memory else []
        times += [self._disk_at] if self.disk else []
        return min([*times, self._next_at] if self._inodes or self._sockets else times, default=None)

    def look(self, now: float) -> None:
        if self.memory and now >= self._memory_at:
            for sandbox in self._open():
                self._look_at_memory(sandbox)
            self._memory_at = _later(now, MEMORY_SECONDS)
        if self.disk and now >= self._disk_at:
            self._disk_at = now + self._context.watch_seconds
            for sandbox in self._open():
                self._disk_at = min(self._disk_at, self._step(sandbox))
        if (self._inodes or self._sockets) and self._sandboxes and now >= self._next_at:
            for sandbox in self._some(now):
                if self._sockets:
                    self._look_at_sockets(sandbox)
                if self._inodes:
                    self._look_at_inodes(sandbox)

    def usage(self, sandbox: Supervised) -> dict[str, Any]:
        """Return what it has used until now, as its control group, its tree and the watch say."""
        seen = sandbox.seen
        if self.memory:
            self._measure(sandbox)
        usage: dict[str, Any] = {"strikes": dict(seen.strikes)}
        if seen.processes:
            usage |= {name: getattr(seen, name) for name in ("memory_bytes", "memory_peak_bytes", "processes")}
        if seen.disk_bytes is not None:
            usage["disk_bytes"] = seen.disk_bytes
        if sandbox.group is not None:
            stats = sandbox.group.stats()
            counted = ("memory_bytes", "memory_peak_bytes", "processes", "cpu_seconds")
            usage |= {name: value for name in counted if (value := getattr(stats, name)) is not None}
            strikes = {"memory": stats.oom_kills, "processes": stats.processes_refused}
            usage["strikes"] |= {name: number for name, number in strikes.items() if number is not None}
        try:
            tree = os.open(sandbox.record.tree, _DIRECTORY, dir_fd=self._context.pool)
        except OSError:
            return usage
        try:
            if btrfs.is_btrfs(tree):
                usage["disk_bytes"] = btrfs.quota(tree, btrfs.subvolume_id(tree)).used_bytes
        except OSError:
            pass
        finally:
            os.close(tree)
        return usage

    def _open(self) -> list[Supervised]:
        return [sandbox for sandbox in self._sandboxes.values() if sandbox.cause is None]

    # -- memory and processes

    def _measure(self, sandbox: Supervised) -> list[Process]:
        seen = sandbox.seen
        pids = [sandbox.record.pid, *proc.descendants(sandbox.record.pid)]
        seen.memory_bytes, found = measure_memory(pids, int(sandbox.record.limits["memory_bytes"]))
        if sandbox.diag is not None:
            seen.memory_bytes += sock_diag.unix_bytes(sandbox.diag)
        seen.memory_peak_bytes = max(seen.memory_peak_bytes, seen.memory_bytes)
        seen.processes = len(pids)
        return found

    def _look_at_memory(self, sandbox: Supervised) -> None:
        found, seen = self._measure(sandbox), sandbox.seen
        used, most = seen.memory_bytes, int(sandbox.record.limits["memory_bytes"])
        if used <= most:
            seen.over = 0
        elif seen.over >= LOOKS:
            self._end(
                sandbox, Ended(limit="memory", reason=f"the supervisor saw it use {_mib(used)} of {_mib(most)} MiB")
            )
        else:
            seen.over += 1
            seen.strikes["memory"] += 1
            self._kill(max(found[1:] or found, key=lambda process: process.bytes))
        if seen.processes > int(sandbox.record.limits.get("processes", seen.processes)) + OURS:
            self._end(sandbox, Ended(limit="processes", reason=f"the supervisor saw {seen.processes} processes in it"))

    def _kill(self, process: Process) -> None:
        """Kill it, and no later process with its number."""
        try:
            descriptor = pidfd.open(process.pid)
        except OSError:
            return
        try:
            if proc.start_time(process.pid) == process.start:
                self._context.signal(descriptor, signal.SIGKILL)
        except OSError:
            pass
        finally:
            os.close(descriptor)

    # -- disk and inodes

    def _step(self, sandbox: Supervised) -> float:
        """Walk a part of the tree, if it is time for it. Return when to continue."""
        start, seen = proc.boottime(), sandbox.seen
        if seen.walk is None:
            if start < seen.walk_at:
                return seen.walk_at
            seen.walk, seen.walked = self._walk(sandbox.record), 0.0
        try:
            name, size, count = next(seen.walk)
        except StopIteration:
            seen.walk = None
            seen.walk_at = start + max(self._context.watch_seconds, seen.walked * SHARE)
            return seen.walk_at
        except TooDeep:
            self._end(sandbox, Ended(limit="inodes", reason="its directories are nested too deeply to be measured"))
            return start + self._context.watch_seconds
        seen.walked += proc.boottime() - start
        record = sandbox.record
        most: float | None = record.limits["disk_bytes"]
        what = "its tree"
        if name == record.tree:
            seen.disk_bytes = max(size, seen.disk_bytes or 0) if seen.walk else size
        else:
            most, what = record.trees[name], f"{name}, which it writes"
        if most is not None and size > most:
            reason = f"the supervisor saw {_mib(size)} of {_mib(int(most))} MiB in {what}"
            self._end(sandbox, Ended(limit="disk", reason=reason))
        elif count > int(record.limits["inodes"]):
            self._end(sandbox, Ended(limit="inodes", reason=f"the supervisor saw {count} files in {what}"))
        return start + SLICE_SECONDS

    def _walk(self, record: Record) -> Generator[tuple[str, int, int], None, None]:
        """Walk through all its trees, one after the other."""
        for name in (record.tree, *record.trees):
            try:
                root = os.open(f"{name}/root", _DIRECTORY, dir_fd=self._context.pool)
            except OSError:
                continue
            with closing(root):
                for size, count in measure_tree(root):
                    yield name, size, count

    # -- sockets and inodes, where the kernel keeps the rest

    def _some(self, now: float) -> list[Supervised]:
        """Return some of the living sandboxes, so that one look stays short. Over several calls all have their turn,
        except those that have been idle."""
        if not self._queue:
            self._queue = list(self._sandboxes)
        some, self._queue = self._queue[:_AT_ONCE], self._queue[_AT_ONCE:]
        self._next_at = now + self._context.watch_seconds * min(1.0, _AT_ONCE / max(1, len(self._sandboxes)))
        living = [sandbox for id in some if (sandbox := self._sandboxes.get(id)) is not None and sandbox.cause is None]
        return [sandbox for sandbox in living if _has_worked(sandbox)]

    def _look_at_sockets(self, sandbox: Supervised) -> None:
        """Measure its sockets. Each TCP socket may exceed the limit by some tens of KiB, and no group counts netlink's
        answers: thousands of sockets would use up the machine's memory."""
        held = proc.netlink_bytes(sandbox.record.pid)
        if sandbox.group is not None:
            held += sandbox.group.socket_bytes()
        if held > MOST_SOCKET_BYTES:
            self._end(sandbox, Ended(limit="memory", reason="its sockets held more than they may in their buffers"))

    def _look_at_inodes(self, sandbox: Supervised) -> None:
        record = sandbox.record
        if any(self._has_too_many_files(sandbox, tree) for tree in (record.tree, *record.trees)):
            self._end(sandbox, Ended(limit="inodes", reason="it had more files than its limit allows"))

    def _has_too_many_files(self, sandbox: Supervised, name: str) -> bool:
        most, known = int(sandbox.record.limits["inodes"]), sandbox.seen.counts.setdefault(name, Count())
        start = proc.boottime()
        if start < known.after:
            return False
        try:
            tree = os.open(name, _DIRECTORY, dir_fd=self._context.pool)
        except OSError:
            return False
        with closing(tree):
            highest = btrfs.highest_inode(tree)
            if highest < max(known.start, most):
                return False
            count = 0
            for count in btrfs.count_inodes(tree):
                if count > most:
                    return True
        known.start = highest + most - count
        known.after = start + SHARE * (proc.boottime() - start)
        return False


def _has_worked(sandbox: Supervised) -> bool:
    """Tell whether it has used processor time since the last call: otherwise nothing of it can have grown."""
    used = None if sandbox.group is None else sandbox.group.cpu_seconds()
    if used is not None and used - sandbox.seen.worked < _NEXT_TO_NOTHING_SECONDS:
        return False
    sandbox.seen.worked = used or 0.0
    return True


def _later(start: float, pause: float) -> float:
    now = proc.boottime()
    return now + max(pause, (now - start) * SHARE)


def _mib(size: int) -> int:
    return size >> 20


# -- what has no control group and no quota to ask


class Process(NamedTuple):
    pid: int
    start: int
    bytes: int


def measure_memory(pids: list[int], limit: int) -> tuple[int, list[Process]]:
    """Return the bytes that these processes use together, and those of each. Shared pages count once if it matters.

    Where the resident size stays below `limit` even with shared pages counted several times, nothing more exact is
    asked for.
    """
    found = [known for pid in pids if (known := _resident(pid)) is not None]
    total = sum(process.bytes for process in found)
    if total > limit:
        found = [process._replace(bytes=_share(process)) for process in found]
        total = sum(process.bytes for process in found)
    return total, found


def _resident(pid: int) -> Process | None:
    try:
        return Process(pid, proc.start_time(pid), proc.resident_bytes(pid)[0])
    except (OSError, ValueError, IndexError):
        return None


def _share(process: Process) -> int:
    try:
        return proc.proportional_bytes(process.pid)
    except (OSError, ValueError):
        pass  # it has ended, or it is one of ours, into which nobody may look
    try:
        resident, shared = proc.resident_bytes(process.pid)
        return resident - shared
    except (OSError, ValueError, IndexError):
        return 0


class TooDeep(Exception):
    """A tree is nested deeper than paths can say."""


def measure_tree(root: int) -> Generator[tuple[int, int], None, None]:
    """Yield bytes and files below the directory `root` so far; the last pair is that of the whole.

    Each step takes about a millisecond. A file with several names counts once. Raises TooDeep.
    """
    size = count = 0
    several: set[int] = set()
    pending = [b"."]
    while pending:
        directory = pending.pop()
        try:
            fd = openat2.open_beneath(root, directory, _DIRECTORY, symlinks=False, cross_mounts=False)
        except OSError:
            continue  # it has been moved or removed
        with closing(fd), os.scandir(fd) as entries:
            for entry in entries:
                try:
                    known = entry.stat(follow_symlinks=False)
                except OSError:
                    continue
                count += 1
                if entry.is_dir(follow_symlinks=False):
                    below = directory + b"/" + os.fsencode(entry.name)
                    if len(below) > _LONGEST_PATH:
                        raise TooDeep
                    pending.append(below)
                elif known.st_nlink > 1:
                    if known.st_ino in several:
                        continue
                    several.add(known.st_ino)
                size += known.st_blocks * 512
                if count % _ENTRIES_AT_ONCE == 0:
                    yield size, count
        yield size, count
