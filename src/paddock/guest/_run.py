"""A command as the agent knows it, and who waits for its end."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ._frames import Json
from ._loop import Timer
from ._tree import Family

if TYPE_CHECKING:
    from ._exec import ExecHandler


@dataclass(slots=True, eq=False)
class Exec:
    """One command, from its start until it is forgotten."""

    id: str
    argv: tuple[str, ...]
    pid: int
    background: bool
    family: Family
    started_at: float = field(default_factory=time.time)
    started: float = field(default_factory=time.monotonic)
    looked_at: float = field(default_factory=time.monotonic)
    counted: float = 0.0
    """Seconds of its timeout that were over then."""
    status: Json | None = None
    limit: str | None = None
    ending: bool = False
    """Its time is over, and some of what it started may live: until none does, it has not ended."""
    held: Json | None = None
    """The status that is told then."""
    timer: Timer | None = None
    handler: ExecHandler | None = None
    followers: list[ExecFollower] = field(default_factory=list["ExecFollower"])

    def info(self) -> Json:
        argv: list[str] = []
        room = 1024
        for argument in self.argv[:64]:
            argv.append(argument[:room])
            room -= len(argv[-1])
        return {
            "id": self.id,
            "argv": argv,
            "pid": self.pid,
            "started_at": self.started_at,
            "background": self.background,
            "status": self.status,
        }


class ExecFollower:
    """Told when a background command it reads the output of has ended."""

    def exec_ended(self) -> None:
        raise NotImplementedError
