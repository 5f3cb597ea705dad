"""Which of the processes below one holds a socket, by what /proc shows of their descriptors."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass

from paddock.linux import _files, proc


@dataclass(slots=True)
class Search:
    """Bounds of one search, which is used up by it: the processes inside decide how many there are of both.

    `hidden` counts those whose descriptors the kernel did not show.
    """

    processes: int = 1024
    descriptors: int = 16_384
    hidden: int = 0

    def holder(self, first: int, inode: int, *, likely: int | None = None) -> int | None:
        """`first`, or one that descends from it: `likely` if it does hold it, else the one nearest to `first`. None:
        nobody that could be looked at. TooMany."""
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
        try:
            for task in os.listdir(f"/proc/{pid}/task"):
                self._spend()
                found += map(int, _files.read(f"/proc/{pid}/task/{task}/children").split())
        except (FileNotFoundError, ProcessLookupError):
            pass
        return found

    def _holds(self, pid: int, wanted: str) -> bool:
        self._spend()
        try:
            directory = os.open(f"/proc/{pid}/fd", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except (FileNotFoundError, ProcessLookupError):
            return False
        except PermissionError:
            self.hidden += 1
            return False
        try:
            return self._is_in(directory, wanted)
        except (FileNotFoundError, ProcessLookupError):
            return False
        except PermissionError:
            self.hidden += 1
            return False
        finally:
            os.close(directory)

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
    """Its words say of what."""


def is_below(pid: int, first: int) -> bool:
    """Whether `pid` is `first` or descends from it, now."""
    try:
        while pid not in (0, first):
            pid = proc.parent(pid)
    except (FileNotFoundError, ProcessLookupError):
        return False
    return pid == first
