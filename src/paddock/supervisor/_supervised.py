"""Hold a living sandbox in the supervisor."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from paddock.linux import cgroups
from paddock.supervisor._exits import Exits, close
from paddock.supervisor._namespaces import Way
from paddock.supervisor.records import Ended, Record
from paddock.wire import close_all

Message = dict[str, Any]


@dataclass(slots=True)
class Seen:
    """Hold the watch's measurements of one sandbox."""

    used: dict[str, int] = field(default_factory=dict[str, int])
    """What it uses, by the names of `cgroups.GroupStats`, and `disk_bytes`."""
    strikes: Counter[str] = field(default_factory=Counter[str])
    over: int = 0
    """How often in a row it exceeded its memory limit."""
    worked: float = -1.0
    """Its processor time at the last look."""
    uncounted: dict[str, int] = field(default_factory=dict[str, int])
    """For each of its trees, an inode number. Numbers only grow: below it there can't be too many files."""


class Kept(NamedTuple):
    """Hold one command: its owner, as the daemon names it, and its input and output."""

    owner: str
    descriptors: tuple[int, ...]


class KeptCommands(dict[str, Kept]):
    """Hold commands of one sandbox that outlive the daemon, by id."""

    def put(self, command: str, owner: str, descriptors: tuple[int, ...], after: int) -> None:
        """Replace what is held of a command, except its first `after` descriptors. Without descriptors, forget it."""
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
    """Hold a sandbox. The supervisor sets `cause` before it ends it; without a cause it died by itself."""

    record: Record
    pidfd: int
    group: cgroups.Group | None
    exits: Exits | None = None
    way: Way | None = None
    """The namespaces for later exits and mounts. None: they are opened when needed."""
    diag: int | None = None
    """A socket for `sock_diag.unix_bytes`, if the supervisor counts its memory. None for one of an earlier supervisor.
    """
    cause: Ended | None = None
    waiting: list[Callable[[], None]] = field(default_factory=list[Callable[[], None]])
    """Answers to send when it has ended."""
    kept: KeptCommands = field(default_factory=KeptCommands)
    seen: Seen = field(default_factory=Seen)

    def for_gateway(self) -> tuple[Message, tuple[int, ...]]:
        """Return facts for the gateway, and its sockets and a pidfd; no descriptors if the gateway has them."""
        record, exits = self.record, self.exits
        told: Message = {"late": record.late, "pid": record.pid, "start": record.start}
        return told, () if exits is None else (*(one.fileno() for one in exits), self.pidfd)

    def close_way(self) -> None:
        if self.way is not None:
            self.way.close()
            self.way = None

    def close(self) -> None:
        os.close(self.pidfd)
        self.kept.close()
        self.close_way()
        if self.diag is not None:
            os.close(self.diag)
        if self.exits is not None:
            close(self.exits)
