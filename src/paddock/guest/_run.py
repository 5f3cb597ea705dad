"""A command as the agent knows it, and who waits for its end."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from ._frames import Json
from ._loop import Timer
from ._tree import Family

if TYPE_CHECKING:
    from ._exec import ExecHandler


class Exec:
    """One command, from its start until it is forgotten."""

    def __init__(
        self,
        *,
        id: str,
        number: int,
        argv: tuple[str, ...],
        pid: int,
        background: bool,
        family: Family,
    ) -> None:
        self.id, self.number, self.argv, self.pid = id, number, argv, pid
        self.background, self.family = background, family
        self.started_at = time.time()
        self.started = self.looked_at = time.monotonic()
        self.counted = 0.0
        """Seconds of its timeout that were over then."""
        self.status: Json | None = None
        self.limit: str | None = None
        self.ending = False
        """Its time is over, and some of what it started may live: until none does, it has not ended."""
        self.held: Json | None = None
        """The status that is told then."""
        self.timer: Timer | None = None
        self.handler: ExecHandler | None = None
        self.followers: list[ExecFollower] = []

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
