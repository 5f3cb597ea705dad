"""Stopping a sandbox: for an instant, so that a copy of its files is of one instant; or until it is resumed.

By the freezer of its cgroup; without one by SIGSTOP to all its processes. Pid 1, which holds the deadline, is left out
for an instant; else it stops with the others, which it would have go on, and the keeper alone holds the deadline. A
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


def stop(jail: Jail, send: Send, *, with_init: bool = False) -> None:
    """Returns when none of its processes runs. TimeoutError, and all go on, if that takes too long."""
    if jail.group is not None and jail.group.base.freezes:
        jail.group.freeze(STOP_SECONDS)
        return
    deadline = time.monotonic() + STOP_SECONDS
    while running := [pid for pid in _processes(jail, with_init) if proc.state(pid) not in _STANDING]:
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
    _signal([pid for pid in _processes(jail, with_init=True) if proc.state(pid) == "T"], signal.SIGCONT, send)


def stands(jail: Jail) -> bool:
    """What the kernel says: that none of its processes runs."""
    if jail.group is not None and jail.group.base.freezes:
        return jail.group.is_frozen()
    return all(proc.state(pid) in _STANDING for pid in _processes(jail, with_init=True))


def _processes(jail: Jail, with_init: bool) -> list[int]:
    """Pid 1 comes first: it starts others, and has them go on."""
    return [*([jail.pid] if with_init else []), *proc.descendants(jail.pid)]


def _signal(pids: list[int], number: int, send: Send) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            process = pidfd.open(pid)
            try:
                send(process, number)
            finally:
                os.close(process)


Holder = int
"""A number of the daemon's."""


class Freezer:
    """Who holds which sandbox still. Nobody does for longer than HOLD_SECONDS, nor after the daemon has gone. And which
    are paused: they stand still whoever holds them or goes away."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._held: dict[str, tuple[Jail, dict[Holder, float]]] = {}
        self._paused: dict[str, Jail] = {}

    def hold(self, id: str, jail: Jail, who: Holder) -> None:
        """TimeoutError, OSError: it could not be stopped, and goes on."""
        _, holders = self._held.get(id, (jail, dict[Holder, float]()))
        if not holders:
            if id not in self._paused:
                stop(jail, self._send)
            self._held[id] = jail, holders
        holders[who] = proc.boottime() + HOLD_SECONDS

    def let_go(self, id: str, who: Holder) -> bool:
        """False if `who` had not held it until now."""
        jail, holders = self._held.get(id, (None, dict[Holder, float]()))
        held = holders.pop(who, None) is not None
        if jail is not None and not holders:
            del self._held[id]
            if id not in self._paused:
                self._go_on(jail)
        return held

    def pause(self, id: str, jail: Jail) -> None:
        """Until `resume` or `end`. TimeoutError, OSError: it could not be stopped, and goes on."""
        if id not in self._paused:
            stop(jail, self._send, with_init=True)
            self._paused[id] = jail

    def resume(self, id: str) -> None:
        """It goes on, if nobody holds it still at this moment. Nothing if it is not paused."""
        jail = self._paused.pop(id, None)
        if jail is not None and id not in self._held:
            self._go_on(jail)

    def paused(self) -> list[str]:
        """Those that stand still until they are resumed, as the kernel says."""
        return [id for id, jail in self._paused.items() if stands(jail)]

    def end(self, id: str) -> None:
        """It goes on, whoever held it: a process that stands cannot die everywhere (version 1 of cgroups)."""
        jail, _ = self._held.pop(id, (None, None))
        jail = self._paused.pop(id, jail)
        if jail is not None:
            self._go_on(jail)

    def gone(self) -> None:
        """The daemon, and with it all that held any."""
        for id, (_, holders) in list(self._held.items()):
            for who in list(holders):
                self.let_go(id, who)

    def deadlines(self) -> list[float]:
        return [until for _, holders in self._held.values() for until in holders.values()]

    def expire(self, now: float) -> None:
        for id, (_, holders) in list(self._held.items()):
            for who in [who for who, until in holders.items() if until <= now]:
                self.let_go(id, who)

    def _go_on(self, jail: Jail) -> None:
        with suppress(FileNotFoundError):
            go_on(jail, self._send)
