"""The watch: limits that the kernel does not keep here are kept by looking, some times a second.

What is looked for is soft: between two looks a sandbox may use more. So it says of itself: watched.
"""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from paddock.keeper import _measure
from paddock.keeper._records import Ended, Record
from paddock.linux import pidfd, proc, sock_diag

MEMORY_SECONDS = 0.25
SLICE_SECONDS = 0.02  # between two steps of a walk, each of about a millisecond
SHARE = 10  # looking takes at most this part of the keeper's time
OURS = 8  # processes of a sandbox that serve it: pid 1, agents, and what an agent is just starting
LOOKS = 3  # so often in a row over its memory, and killing single processes has not helped
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class Housed(Protocol):
    diag: int | None


class Living(Protocol):
    @property
    def jail(self) -> Housed: ...

    record: Record
    cause: Ended | None


@dataclass(slots=True)
class Seen:
    """What the watch knows of one sandbox."""

    memory_bytes: int = 0
    memory_peak_bytes: int = 0
    processes: int = 0
    disk_bytes: int | None = None
    strikes: Counter[str] = field(default_factory=Counter[str])
    over: int = 0
    walk: Generator[tuple[str, int, int], None, None] | None = None
    walked: float = 0.0
    """Seconds that the present or last walk took."""
    walk_at: float = 0.0


class Watch:
    """`end(life, ended)` ends a sandbox, `send(pidfd, number)` signals a process. `memory` and `disk` say whether they
    are to be looked at at all, `disk_seconds` how long after the last look."""

    def __init__(
        self,
        pool: int,
        lives: Mapping[str, Living],
        end: Callable[..., None],
        send: Callable[[int, int], None],
        *,
        memory: bool,
        disk: bool,
        disk_seconds: float,
    ) -> None:
        self._pool = pool
        self._lives = lives
        self._end = end
        self._send = send
        self.memory = memory and proc.shows_children()
        self.disk = disk
        self._disk_seconds = disk_seconds
        self._seen: dict[str, Seen] = {}
        self._memory_at = 0.0
        self._disk_at = 0.0

    def kinds(self) -> list[str]:
        return [kind for kind, looked_at in (("memory", self.memory), ("disk", self.disk)) if looked_at]

    def next(self) -> float | None:
        """When to look, in seconds of CLOCK_BOOTTIME."""
        if not self._lives:
            return None
        times = [self._memory_at] if self.memory else []
        return min([*times, self._disk_at] if self.disk else times, default=None)

    def look(self, now: float) -> None:
        if self.memory and now >= self._memory_at:
            for life in self._open():
                self._look_at_memory(life, self._of(life))
            self._memory_at = _later(now, MEMORY_SECONDS)
        if self.disk and now >= self._disk_at:
            self._disk_at = now + self._disk_seconds
            for life in self._open():
                self._disk_at = min(self._disk_at, self._step(life, self._of(life)))
        for id in self._seen.keys() - self._lives.keys():
            self._forget(id)

    def seen(self, life: Living) -> Seen | None:
        """What is known of it; memory and processes as they are now."""
        if self.memory:
            self._measure(life, self._of(life))
        return self._seen.get(life.record.id)

    def _open(self) -> list[Living]:
        return [life for life in self._lives.values() if life.cause is None]

    def _of(self, life: Living) -> Seen:
        return self._seen.setdefault(life.record.id, Seen())

    def _forget(self, id: str) -> None:
        seen = self._seen.pop(id)
        if seen.walk is not None:
            seen.walk.close()

    # -- memory and processes

    def _measure(self, life: Living, seen: Seen) -> list[_measure.Process]:
        pids = _measure.family(life.record.pid)
        seen.memory_bytes, found = _measure.memory(pids, int(life.record.limits["memory_bytes"]))
        if life.jail.diag is not None:
            seen.memory_bytes += sock_diag.unix_bytes(life.jail.diag)
        seen.memory_peak_bytes = max(seen.memory_peak_bytes, seen.memory_bytes)
        seen.processes = len(pids)
        return found

    def _look_at_memory(self, life: Living, seen: Seen) -> None:
        found = self._measure(life, seen)
        used, most = seen.memory_bytes, int(life.record.limits["memory_bytes"])
        if used <= most:
            seen.over = 0
        elif seen.over >= LOOKS:
            self._end(life, Ended(limit="memory", reason=f"the keeper saw it use {_mib(used)} of {_mib(most)} MiB"))
        else:
            seen.over += 1
            seen.strikes["memory"] += 1
            self._kill(max(found[1:] or found, key=lambda process: process.bytes))
        if seen.processes > int(life.record.limits.get("processes", seen.processes)) + OURS:
            self._end(life, Ended(limit="processes", reason=f"the keeper saw {seen.processes} processes in it"))

    def _kill(self, process: _measure.Process) -> None:
        """It and no later process of its number."""
        try:
            descriptor = pidfd.open(process.pid)
        except OSError:
            return
        try:
            if proc.start_time(process.pid) == process.start:
                self._send(descriptor, signal.SIGKILL)
        except OSError:
            pass
        finally:
            os.close(descriptor)

    # -- disk and inodes

    def _step(self, life: Living, seen: Seen) -> float:
        """One slice of a walk through the tree, if it is time for one; when to come back."""
        start = proc.boottime()
        if seen.walk is None:
            if start < seen.walk_at:
                return seen.walk_at
            seen.walk, seen.walked = self._walk(life.record), 0.0
        try:
            name, size, count = next(seen.walk)
        except StopIteration:
            seen.walk = None
            seen.walk_at = start + max(self._disk_seconds, seen.walked * SHARE)
            return seen.walk_at
        except _measure.TooDeep:
            self._end(life, Ended(limit="inodes", reason="its directories are nested too deeply to be measured"))
            return start + self._disk_seconds
        seen.walked += proc.boottime() - start
        record = life.record
        most: float | None = record.limits["disk_bytes"]
        what = "its tree"
        if name == record.tree:
            seen.disk_bytes = max(size, seen.disk_bytes or 0) if seen.walk else size
        else:
            most, what = record.trees[name], f"{name}, which it writes"
        if most is not None and size > most:
            reason = f"the keeper saw {_mib(size)} of {_mib(int(most))} MiB in {what}"
            self._end(life, Ended(limit="disk", reason=reason))
        elif count > int(record.limits["inodes"]):
            self._end(life, Ended(limit="inodes", reason=f"the keeper saw {count} files in {what}"))
        return start + SLICE_SECONDS

    def _walk(self, record: Record) -> Generator[tuple[str, int, int], None, None]:
        """Through all its trees, one after the other."""
        for name in (record.tree, *record.trees):
            try:
                root = os.open(f"{name}/root", _DIRECTORY, dir_fd=self._pool)
            except OSError:
                continue
            try:
                for size, count in _measure.tree(root):
                    yield name, size, count
            finally:
                os.close(root)


def _later(start: float, pause: float) -> float:
    now = proc.boottime()
    return now + max(pause, (now - start) * SHARE)


def _mib(size: int) -> int:
    return size >> 20
