"""Enforce limits that the kernel doesn't enforce here, by looking some times a second.

These limits are soft: between two looks a sandbox may use more. So capabilities call them `watched`. All measured
values are an attacker's and change meanwhile: a measurement may be wrong, but it may not fail or block.
"""

from __future__ import annotations

import heapq
import itertools
import os
import signal
import traceback
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Any, NamedTuple

from paddock.linux import btrfs, cgroups, openat2, pidfd, proc, sock_diag
from paddock.linux.descriptors import closing
from paddock.supervisor._context import SupervisorContext
from paddock.supervisor._spare import SOCKET_BYTES
from paddock.supervisor._supervised import Supervised
from paddock.supervisor.records import Ended

MEMORY_SECONDS = 0.25
LOOK_SECONDS, REST_SECONDS = 0.002, 0.02
SHARE = 10  # looking takes at most this part of the supervisor's time
OURS = 8  # processes of a sandbox that serve it: pid 1, agents, and what an agent is just starting
LOOKS = 3  # so often in a row over its memory, and killing single processes has not helped
MOST_SOCKET_BYTES = 4 * SOCKET_BYTES
_STRIKES = {"memory": "oom_kills", "processes": "processes_refused"}
_NEXT_TO_NOTHING_SECONDS = 0.002
_ENTRIES_AT_ONCE = 200  # about a millisecond's worth
_LONGEST_PATH = 4000
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC

Measure = Callable[[Supervised], Iterable[float]]
"""Measure something in steps of about a millisecond. It yields the seconds until the next step."""


class Watch:
    """Measure all sandboxes in turn. `end(sandbox, ended)` ends one. `memory` and `disk`: it watches these."""

    def __init__(
        self, context: SupervisorContext, sandboxes: Mapping[str, Supervised], end: Callable[..., None]
    ) -> None:
        self._context, self._sandboxes, self._end = context, sandboxes, end
        self.memory = not context.held >= {"memory", "pids"} and proc.shows_children()
        self.disk = not (context.root_mode and btrfs.is_btrfs(context.pool))  # btrfs itself limits bytes, not inodes
        self._due: list[tuple[float, int, Supervised, Iterator[float]]] = []
        self._numbers = itertools.count()
        self._rests_until = 0.0

    def kinds(self) -> list[str]:
        return [kind for kind, watched in (("memory", self.memory), ("disk", self.disk)) if watched]

    def begin(self, sandbox: Supervised) -> None:
        rounds = [_rounds(sandbox, self._measure_rest, self._context.watch_seconds)]
        if self.memory:
            rounds.append(_rounds(sandbox, self._measure_memory, MEMORY_SECONDS))
        for steps in rounds:
            self._put(sandbox, steps)

    def _put(self, sandbox: Supervised, steps: Iterator[float]) -> None:
        now, pause = proc.boottime(), next(steps)
        # At multiples of the pause, so that the supervisor wakes up once for all sandboxes.
        at = (now // pause + 1) * pause if pause else now
        heapq.heappush(self._due, (at, next(self._numbers), sandbox, steps))

    def next(self) -> float | None:
        """Return when to look next, in seconds of CLOCK_BOOTTIME."""
        return max(self._due[0][0], self._rests_until) if self._due else None

    def look(self, now: float) -> None:
        """Take some steps of what is due, and then rest."""
        end = now
        while self._due and self._due[0][0] <= now and self._rests_until <= now and end < now + LOOK_SECONDS:
            _, _, sandbox, steps = heapq.heappop(self._due)
            if self._sandboxes.get(sandbox.record.id) is sandbox and sandbox.cause is None:
                self._put(sandbox, steps)
            end = proc.boottime()
        if end > now:
            self._rests_until = now + max(REST_SECONDS, (end - now) * SHARE)

    def usage(self, sandbox: Supervised) -> dict[str, Any]:
        """Return what it has used until now, as its control group, its tree and the watch say."""
        if self.memory:
            self._measure_processes(sandbox)
        usage: dict[str, Any] = {**sandbox.measured.used, "strikes": dict(sandbox.measured.strikes)}
        if sandbox.group is not None:
            counted = sandbox.group.stats()._asdict()
            known = {name: number for name, number in counted.items() if number is not None}
            usage["strikes"] |= {limit: known.pop(name) for limit, name in _STRIKES.items() if name in known}
            usage |= known
        if self._context.quotas is not None:
            with suppress(OSError), closing(self._open(sandbox.record.tree)) as tree:
                usage["disk_bytes"] = btrfs.quota(self._context.quotas, btrfs.subvolume_id(tree)).used_bytes
        return usage

    def _open(self, name: str) -> int:
        return os.open(name, _DIRECTORY, dir_fd=self._context.pool)

    # -- memory and processes

    def _measure_processes(self, sandbox: Supervised) -> list[Process]:
        used, record = sandbox.measured.used, sandbox.record
        pids = [record.pid, *proc.descendants(record.pid)]
        memory, found = measure_memory(pids, int(record.limits["memory_bytes"]))
        if sandbox.diag is not None:
            memory += sock_diag.unix_bytes(sandbox.diag)
        peak = max(memory, used.get("memory_peak_bytes", 0))
        used |= {"memory_bytes": memory, "memory_peak_bytes": peak, "processes": len(pids)}
        return found

    def _measure_memory(self, sandbox: Supervised) -> Iterable[float]:
        found, measured, limits = self._measure_processes(sandbox), sandbox.measured, sandbox.record.limits
        used, most, processes = measured.used["memory_bytes"], int(limits["memory_bytes"]), measured.used["processes"]
        if used <= most:
            measured.over = 0
        elif measured.over >= LOOKS:
            reason = f"the supervisor saw it use {used >> 20} of {most >> 20} MiB"
            self._end(sandbox, Ended(limit="memory", reason=reason))
        else:
            measured.over += 1
            measured.strikes["memory"] += 1
            self._kill(max(found[1:] or found, key=lambda process: process.bytes))
        if processes > int(limits.get("processes", processes)) + OURS:
            self._end(sandbox, Ended(limit="processes", reason=f"the supervisor saw {processes} processes in it"))
        return ()

    def _kill(self, process: Process) -> None:
        """Kill it, and no later process with its number."""
        with suppress(OSError), closing(pidfd.open(process.pid)) as descriptor:
            if proc.start_time(process.pid) == process.start:
                self._context.signal(descriptor, signal.SIGKILL)

    # -- sockets and trees

    def _measure_rest(self, sandbox: Supervised) -> Iterable[float]:
        """Measure its sockets and trees, unless it has been idle."""
        if not _has_worked(sandbox):
            return
        if sandbox.group is not None and _socket_bytes(sandbox.record.pid, sandbox.group) > MOST_SOCKET_BYTES:
            self._end(sandbox, Ended(limit="memory", reason="its sockets held more than they may in their buffers"))
        record = sandbox.record
        for name, most in {record.tree: record.limits["disk_bytes"], **record.trees}.items():
            with suppress(FileNotFoundError), closing(self._open(f"{name}/root" if self.disk else name)) as tree:
                try:
                    yield from self._measure_tree(sandbox, name, tree, most)
                except TooDeep:
                    reason = "its directories are nested too deeply to be measured"
                    self._end(sandbox, Ended(limit="inodes", reason=reason))

    def _measure_tree(self, sandbox: Supervised, name: str, tree: int, most: float | None) -> Iterable[float]:
        measured, inodes = sandbox.measured, int(sandbox.record.limits["inodes"])
        highest = 0 if self.disk else btrfs.highest_inode(tree)
        if not self.disk and highest < measured.uncounted.get(name, inodes):
            return
        own = name == sandbox.record.tree
        what = "its tree" if own else f"{name}, which it writes"
        size = count = 0
        for size, count in measure_tree(tree) if self.disk else ((0, n) for n in btrfs.count_inodes(tree, highest)):
            if self.disk and own:
                measured.used["disk_bytes"] = max(size, measured.used.get("disk_bytes", 0))
            if most is not None and size > most:
                reason = f"the supervisor saw {size >> 20} of {int(most) >> 20} MiB in {what}"
                self._end(sandbox, Ended(limit="disk", reason=reason))
            elif count > inodes:
                self._end(sandbox, Ended(limit="inodes", reason=f"the supervisor saw {count} files in {what}"))
            yield 0
        if not self.disk:
            measured.uncounted[name] = highest + inodes - count
        elif own:
            measured.used["disk_bytes"] = size


def _rounds(sandbox: Supervised, measure: Measure, pause: float) -> Iterator[float]:
    """Measure again and again. A failure of one measurement stops no other."""
    while True:
        yield pause
        try:
            yield from measure(sandbox)
        except Exception:
            traceback.print_exc()


def _has_worked(sandbox: Supervised) -> bool:
    """Tell whether it has used processor time since the last call: otherwise nothing of it can have grown."""
    used = None if sandbox.group is None else sandbox.group.cpu_seconds()
    if used is not None and used - sandbox.measured.worked < _NEXT_TO_NOTHING_SECONDS:
        return False
    sandbox.measured.worked = used or 0.0
    return True


def _socket_bytes(pid: int, group: cgroups.Group) -> int:
    """Measure its sockets. Each TCP socket may exceed the limit by some tens of KiB, and no group counts netlink's
    answers: thousands of sockets would use up the machine's memory."""
    return proc.netlink_bytes(pid) + group.socket_bytes()


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
    found: list[Process] = []
    for pid in pids:
        with suppress(OSError, ValueError, IndexError):
            found.append(Process(pid, proc.start_time(pid), proc.resident_bytes(pid)[0]))
    total = sum(process.bytes for process in found)
    if total > limit:
        found = [process._replace(bytes=_share(process)) for process in found]
        total = sum(process.bytes for process in found)
    return total, found


def _share(process: Process) -> int:
    with suppress(OSError, ValueError):  # it has ended, or is one of ours, which no process may inspect
        return proc.proportional_bytes(process.pid)
    with suppress(OSError, ValueError, IndexError):
        resident, shared = proc.resident_bytes(process.pid)
        return resident - shared
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
            fd = openat2.open_beneath(root, directory, _DIRECTORY, cross_mounts=False)
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
