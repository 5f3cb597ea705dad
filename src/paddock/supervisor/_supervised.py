"""A sandbox that lives, as the supervisor holds it."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from typing import NamedTuple

from paddock.linux import cgroups
from paddock.supervisor._door import Door
from paddock.supervisor._exits import Exits
from paddock.supervisor._records import Ended, Record
from paddock.wire import close_all


@dataclass(slots=True)
class Seen:
    """What the watch knows of one sandbox."""

    memory_bytes: int = 0
    memory_peak_bytes: int = 0
    processes: int = 0
    disk_bytes: int | None = None
    strikes: Counter[str] = field(default_factory=Counter[str])
    over: int = 0
    """How often in a row it was over its memory."""
    walk: Generator[tuple[str, int, int], None, None] | None = None
    walked: float = 0.0
    """Seconds that the present or last walk took."""
    walk_at: float = 0.0
    worked: float = 0.0
    """Processor time that it had used when it was last looked at."""
    counts: dict[str, Count] = field(default_factory=dict[str, "Count"])
    """Of its trees, by name."""

    def close(self) -> None:
        if self.walk is not None:
            self.walk.close()


@dataclass(slots=True)
class Count:
    start: int = 0
    """The inode number from which on there may be too many files. Numbers only grow: below it nothing is counted."""
    after: float = 0.0
    """When to count again: counting takes a tenth of the supervisor's time at most."""


class Kept(NamedTuple):
    """Of one command: whose it is, as the daemon says it, and what it reads and writes."""

    owner: str
    descriptors: tuple[int, ...]


class Keeping(dict[str, Kept]):
    """Commands of one sandbox that outlive the daemon, by id."""

    def put(self, command: str, owner: str, descriptors: tuple[int, ...], after: int) -> None:
        """In place of what was kept before, but for its first `after` descriptors. Without any it is forgotten."""
        before = self.pop(command, Kept(owner, ())).descriptors
        close_all(before[after:])
        if held := before[:after] + descriptors:
            self[command] = Kept(owner, held)

    def owners(self) -> dict[str, str]:
        return {command: one.owner for command, one in self.items()}

    def close(self) -> None:
        for one in self.values():
            close_all(one.descriptors)
        self.clear()


@dataclass(slots=True, kw_only=True, eq=False)
class Supervised:
    """`cause` is set before the supervisor ends it; without one it died by itself."""

    record: Record
    pidfd: int
    group: cgroups.Group | None
    exits: Exits | None = None
    way: Door | None = None
    """To make exits when they are asked for, and mounts when what waits is claimed. None: it is opened then."""
    diag: int | None = None
    """For `sock_diag.unix_bytes`, where the supervisor counts its memory. None of an earlier supervisor's."""
    cause: Ended | None = None
    waiting: list[Callable[[], None]] = field(default_factory=list[Callable[[], None]])
    """Answers that its end brings."""
    kept: Keeping = field(default_factory=Keeping)
    seen: Seen = field(default_factory=Seen)

    def close_way(self) -> None:
        if self.way is not None:
            self.way.close()
            self.way = None

    def close(self) -> None:
        os.close(self.pidfd)
        self.kept.close()
        self.close_way()
        self.seen.close()
        if self.diag is not None:
            os.close(self.diag)
        if self.exits is not None:
            self.exits.close()
