"""Descendants of a process, as the kernel shows them: it asks no process, and none can hide.

The parent of a process in a pid namespace is always of the same namespace. The namespace's first process adopts orphans
(pid_namespaces(7)). So descent from there finds all of them. Only names and arguments are their own text.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import NamedTuple

from paddock.linux import kernel_files, proc
from paddock.linux.descriptors import closing

_ROUNDS = 4
_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")
_ARGUMENT_BYTES = 4096


class Process(NamedTuple):
    """A process. `inner_pid` is its number in its namespace, `uid` the host's. `started` is in seconds since boot."""

    pid: int
    inner_pid: int
    parent: int
    name: bytes
    argv: tuple[bytes, ...]
    state: str
    uid: int
    threads: int
    started: float
    cpu_seconds: float
    memory_bytes: int
    filtered: bool
    """It has a system call filter, and can remove neither that nor `no_new_privs`."""


def below(first: int) -> tuple[Process, ...]:
    """Return `first` and its descendants, by their numbers inside (the host's numbers wrap around).

    It is empty if `first` has ended.

    It may take a moment for many processes.
    """
    described = (_describe(pid, stat) for pid, stat in _family(first).items())
    found = [process for process in described if process is not None]
    return tuple(sorted(found, key=lambda one: (one.pid != first, one.inner_pid)))


def _family(first: int) -> dict[int, list[bytes]]:
    """Return a process with its descendants.

    It looks again if a parent ended between two looks, because its orphans then have another parent.
    """
    family: dict[int, list[bytes]] = {}
    for _ in range(_ROUNDS):
        every = {int(name): stat for name in os.listdir("/proc") if name.isdecimal() and (stat := _stat(int(name)))}
        children: dict[int, list[int]] = {}
        for pid, stat in every.items():
            children.setdefault(int(stat[3]), []).append(pid)
        family = {}
        todo = [first] if first in every else []
        while todo:
            pid = todo.pop()
            family[pid] = every[pid]
            todo += children.get(pid, ())
        if all(parent in every for parent in children if parent):
            break
    return family


def _stat(pid: int) -> list[bytes] | None:
    try:
        return proc.stat(pid)
    except OSError:
        return None


def _describe(pid: int, stat: list[bytes]) -> Process | None:
    try:
        status = proc.status(pid)
        argv = _arguments(pid)
    except OSError:
        return None
    return Process(
        pid=pid,
        inner_pid=int(status["NSpid"].split()[-1]),
        parent=int(stat[3]),
        name=stat[1],
        argv=tuple(argv.rstrip(b"\0").split(b"\0")) if argv.strip(b"\0") else (),
        state=stat[2].decode(),
        uid=int(status["Uid"].split()[0]),
        threads=int(stat[19]),
        started=int(stat[21]) / _TICKS,
        cpu_seconds=(int(stat[13]) + int(stat[14])) / _TICKS,
        memory_bytes=int(stat[23]) * _PAGE,
        filtered=status["Seccomp"] == "2" and status["NoNewPrivs"] == "1",
    )


def _arguments(pid: int) -> bytes:
    """Return the beginning: it is the process's own memory, of any length and content."""
    with closing(os.open(b"/proc/%d/cmdline" % pid, os.O_RDONLY | os.O_CLOEXEC)) as fd:
        return os.read(fd, _ARGUMENT_BYTES)


# -- which of them holds a socket


@dataclass(slots=True)
class Search:
    """Limits of one search, because the processes inside decide the numbers of both.

    `hidden` counts processes whose descriptors the kernel didn't show.
    """

    processes: int = 1024
    descriptors: int = 16_384
    hidden: int = 0

    def holder(self, first: int, inode: int, *, likely: int | None = None) -> int | None:
        """Find the process with a socket: `likely` if it has it, else the one nearest to `first`.

        Return None without a visible one. Raises TooMany.
        """
        wanted = f"socket:[{inode}]"
        if likely is not None and is_below(likely, first) and self._holds(likely, wanted):
            return likely
        return next((pid for pid in self._family(first) if self._holds(pid, wanted)), None)

    def _family(self, first: int) -> Iterator[int]:
        generation = [first]
        while generation:
            yield from generation
            generation = [child for pid in generation for child in self._children(pid)]

    def _children(self, pid: int) -> list[int]:
        found: list[int] = []
        with suppress(FileNotFoundError, ProcessLookupError):
            for task in os.listdir(f"/proc/{pid}/task"):
                self._spend()
                found += map(int, kernel_files.read(f"/proc/{pid}/task/{task}/children").split())
        return found

    def _holds(self, pid: int, wanted: str) -> bool:
        self._spend()
        try:
            with closing(os.open(f"/proc/{pid}/fd", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)) as directory:
                return self._is_in(directory, wanted)
        except (FileNotFoundError, ProcessLookupError):
            return False
        except PermissionError:
            self.hidden += 1
            return False

    def _is_in(self, directory: int, wanted: str) -> bool:
        with os.scandir(directory) as entries:
            for entry in entries:
                self.descriptors -= 1
                if self.descriptors < 0:
                    raise TooMany("more descriptors than are looked at")
                try:
                    if os.readlink(entry.name, dir_fd=directory) == wanted:
                        return True
                except (FileNotFoundError, ProcessLookupError):
                    continue
        return False

    def _spend(self) -> None:
        self.processes -= 1
        if self.processes < 0:
            raise TooMany("more processes and threads than are looked at")


class TooMany(Exception):
    """The search exceeded a limit. The message names it."""


def is_below(pid: int, first: int) -> bool:
    """Tell whether `pid` is `first` or descends from it at this moment."""
    try:
        while pid not in (0, first):
            pid = proc.parent(pid)
    except (FileNotFoundError, ProcessLookupError):
        return False
    return pid == first
