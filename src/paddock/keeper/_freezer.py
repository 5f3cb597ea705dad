"""Stopping a sandbox for an instant, so that a copy of its files is of one instant.

By the freezer of its cgroup; without one by SIGSTOP to all its processes but pid 1, which holds the deadline. A
process that had been stopped before goes on with the others then.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress

from paddock.keeper._jail import Jail
from paddock.linux import pidfd, proc

STOP_SECONDS = 0.5
HOLD_SECONDS = 30.0
_PAUSE_SECONDS = 0.0005
Send = Callable[[int, int], None]
"""Signals the process of a descriptor."""
_STANDING = frozenset("TtZX")  # stopped, traced, dead (proc_pid_stat(5))


def stop(jail: Jail, send: Send) -> None:
    """Returns when none of its processes runs. TimeoutError, and all go on, if that takes too long."""
    if jail.group is not None and jail.group.base.freezes:
        jail.group.freeze(STOP_SECONDS)
        return
    deadline = time.monotonic() + STOP_SECONDS
    while running := [pid for pid in proc.descendants(jail.pid) if proc.state(pid) not in _STANDING]:
        if time.monotonic() > deadline:
            go_on(jail, send)
            raise TimeoutError(f"processes {running} did not stop")
        _signal(running, signal.SIGSTOP, send)
        time.sleep(_PAUSE_SECONDS)
        # Whoever has called vfork(2) stands in the kernel, but not still, until the child has called exec(2).
        waiting = [pid for pid in running if proc.state(pid) == "D"]
        _signal([child for pid in waiting for child in proc.descendants(pid)], signal.SIGCONT, send)


def go_on(jail: Jail, send: Send) -> None:
    """Nothing if it was not stopped."""
    if jail.group is not None and jail.group.base.freezes:
        jail.group.thaw()
        return
    _signal([pid for pid in proc.descendants(jail.pid) if proc.state(pid) == "T"], signal.SIGCONT, send)


def _signal(pids: list[int], number: int, send: Send) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            process = pidfd.open(pid)
            try:
                send(process, number)
            finally:
                os.close(process)


Holder = tuple[object, int]


class Freezer:
    """Who holds which sandbox still, by connection and its own number for it. Nobody does for longer than
    HOLD_SECONDS, nor after having gone away."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._held: dict[str, tuple[Jail, dict[Holder, float]]] = {}

    def hold(self, id: str, jail: Jail, who: Holder) -> None:
        """TimeoutError, OSError: it could not be stopped, and goes on."""
        _, holders = self._held.get(id, (jail, dict[Holder, float]()))
        if not holders:
            stop(jail, self._send)
            self._held[id] = jail, holders
        holders[who] = proc.boottime() + HOLD_SECONDS

    def let_go(self, id: str, who: Holder) -> bool:
        """False if `who` had not held it until now."""
        jail, holders = self._held.get(id, (None, dict[Holder, float]()))
        held = holders.pop(who, None) is not None
        if jail is not None and not holders:
            self.end(id)
        return held

    def end(self, id: str) -> None:
        """It goes on, whoever held it: a process that stands cannot die everywhere (version 1 of cgroups)."""
        if id in self._held:
            jail, _ = self._held.pop(id)
            with suppress(FileNotFoundError):
                go_on(jail, self._send)

    def gone(self, connection: object) -> None:
        for id, (_, holders) in list(self._held.items()):
            for who in [who for who in holders if who[0] is connection]:
                self.let_go(id, who)

    def deadlines(self) -> list[float]:
        return [until for _, holders in self._held.values() for until in holders.values()]

    def expire(self, now: float) -> None:
        for id, (_, holders) in list(self._held.items()):
            for who in [who for who, until in holders.items() if until <= now]:
                self.let_go(id, who)
