"""Standing still where no keeper sees to it: pid 1 stops all but itself, and goes on holding a deadline: that of the
retention, while the TTL stands still.

`kill(-1, SIGSTOP)` reaches everybody else in the namespace at once, and whoever is just being born (kill(2), fork(2)):
nobody is left who could have anybody go on. What had been stopped before goes on with the others.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable
from typing import Protocol

from . import _requests as requests
from ._connection import Channel, Handler
from ._faults import Fault
from ._frames import Json
from ._loop import Loop, Timer, boottime
from ._tree import parent_and_state, processes

STOP_SECONDS = 5.0
LONGEST_HOLD_SECONDS = 600
_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 0.0005, 0.1
_STANDING = {b"T", b"t", b"Z", b"X", b""}  # stopped, traced, dead (proc_pid_stat(5)), gone


class Clock(Protocol):
    """What holds the deadline."""

    @property
    def deadline(self) -> float: ...
    def set_deadline(self, deadline: float) -> None: ...


class Rest:
    """Of the whole namespace. Belongs to pid 1, which gives it its loop."""

    def __init__(self, idle_seconds: float, retention_seconds: float) -> None:
        self._idle_seconds, self._retention = idle_seconds, retention_seconds
        self._left: float | None = None
        """Of its TTL, while it is paused."""
        self._held: set[_Held] = set()
        self._awake: set[_Awake] = set()
        self._asked: set[_Told] = set()
        self._idle: Timer | None = None
        self._later: list[Callable[[], None]] = []
        self._afterwards: list[Callable[[], None]] = []

    def begin(self, loop: Loop, clock: Clock) -> None:
        self._loop, self._clock = loop, clock
        self._settle()

    @property
    def _paused(self) -> bool:
        return self._left is not None

    @property
    def stands(self) -> bool:
        return self._paused or bool(self._held)

    @property
    def is_held(self) -> bool:
        return bool(self._held)

    def when_held_no_more(self, call: Callable[[], None]) -> None:
        """While it is held."""
        self._afterwards.append(call)

    def when_it_runs(self, call: Callable[[], None]) -> None:
        """At once, if it does."""
        if self.stands:
            self._later.append(call)
        else:
            call()

    def serve(self, operation: str, channel: Channel, request: Json) -> Handler | None:
        """An order of the host's. `hold` and `awake` last as long as their channel."""
        if operation == "pause":
            self._pause()
        elif operation == "resume":
            self._resume()
        elif operation == "times":
            pass
        elif operation == "hold":
            seconds = requests.number(request, "seconds", low=1, high=LONGEST_HOLD_SECONDS)
            return _Held(self, channel, self._loop, seconds)
        elif operation == "awake":
            return _Awake(self, channel)
        elif operation == "stillness":
            return _Told(self, channel, requests.flag(request, "paused"))
        else:
            raise Fault("unsupported", f"init cannot do {operation!r}"[:200])
        channel.reply(self.times())
        channel.end()
        return None

    def times(self) -> Json:
        return {"left": self._left, "deadline": self._clock.deadline}

    def _pause(self) -> None:
        """Until it is resumed. Whoever keeps it awake goes on keeping it so afterwards."""
        if not self._paused:
            if not self._held:
                stop()
            now = boottime()
            self._left = max(0.0, self._clock.deadline - now)
            self._clock.set_deadline(now + self._retention)
            self._tell()

    def _resume(self) -> None:
        if self._left is not None:
            self._clock.set_deadline(boottime() + self._left)
            self._left = None
            if not self._held:
                self._go_on()
            self._settle()
            self._tell()

    # what lasts as long as a channel

    def hold(self, one: _Held) -> None:
        if not self.stands:
            stop()
        self._held.add(one)

    def let_go(self, one: _Held) -> None:
        if one in self._held:
            self._held.remove(one)
            if not self._held:
                afterwards, self._afterwards = self._afterwards, []
                for call in afterwards:
                    call()
                if afterwards and self._paused:
                    with contextlib.suppress(Fault):
                        stop()  # who was just ended runs for a moment more, and would be seen to
            if not self.stands:
                self._go_on()

    def keep_awake(self, one: _Awake) -> None:
        self._awake.add(one)
        self._settle()
        self._resume()

    def rest(self, one: _Awake) -> None:
        self._awake.discard(one)
        self._settle()

    def ask(self, one: _Told) -> None:
        self._asked.add(one)
        self._tell()

    def ask_no_more(self, one: _Told) -> None:
        self._asked.discard(one)

    # what follows from it

    def _settle(self) -> None:
        """Its idle time begins anew, if it has any, runs, and nobody keeps it awake."""
        if self._idle is not None:
            self._idle.cancel()
            self._idle = None
        if self._idle_seconds and not self._paused and not self._awake:
            self._idle = self._loop.after(self._idle_seconds, self._slumber)

    def _slumber(self) -> None:
        try:
            self._pause()
        except Fault:  # one of its processes did not stop in time: again when its time has come again
            self._settle()

    def _go_on(self) -> None:
        _signal_all(signal.SIGCONT)
        later, self._later = self._later, []
        for call in later:
            self._loop.soon(call)

    def _tell(self) -> None:
        for one in [one for one in self._asked if one.known is not self._paused]:
            self._asked.remove(one)
            one.tell(self._paused)


class _Held(Handler):
    """It stands still as long as this is there, and not for longer than it was asked for."""

    def __init__(self, rest: Rest, channel: Channel, loop: Loop, seconds: int) -> None:
        self._rest, self._channel = rest, channel
        rest.hold(self)
        self._timer = loop.after(seconds, self.close)
        channel.reply({})

    def close(self) -> None:
        self._timer.cancel()
        self._rest.let_go(self)
        self._channel.end()


class _Awake(Handler):
    def __init__(self, rest: Rest, channel: Channel) -> None:
        self._rest, self._channel = rest, channel
        rest.keep_awake(self)
        channel.reply(rest.times())

    def close(self) -> None:
        self._rest.rest(self)
        self._channel.end()


class _Told(Handler):
    """Answered when it is otherwise than the host knows."""

    def __init__(self, rest: Rest, channel: Channel, known: bool) -> None:
        self._rest, self._channel, self.known = rest, channel, known
        rest.ask(self)

    def tell(self, paused: bool) -> None:
        self._channel.reply({"paused": paused, **self._rest.times()})
        self._channel.end()

    def close(self) -> None:
        self._rest.ask_no_more(self)
        self._channel.end()


def stop() -> None:
    """Returns when nobody else runs. Fault, and all go on, if that takes too long."""
    deadline = time.monotonic() + STOP_SECONDS
    pause = _PAUSE_SECONDS
    while True:
        _signal_all(signal.SIGSTOP)
        time.sleep(pause)
        states = {pid: _states(pid) for pid in processes() - {os.getpid()}}
        running = [pid for pid, found in states.items() if not found <= _STANDING]
        if not running:
            return
        if time.monotonic() > deadline:
            _signal_all(signal.SIGCONT)
            raise Fault("sandbox", f"processes {sorted(running)[:8]} did not stop within {STOP_SECONDS:g} s")
        if _children_go_on({pid for pid in running if b"D" in states[pid]}):
            time.sleep(pause)
            pause = min(pause * 2, _LONGEST_PAUSE_SECONDS)


def _children_go_on(parents: set[int]) -> bool:
    """Whoever has called vfork(2) stands in the kernel, but not still, until the child has called exec(2)."""
    children = {pid for pid in processes() if parent_and_state(pid)[0] in parents} if parents else set[int]()
    for child in children:
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, signal.SIGCONT)
    return bool(children)


def _states(pid: int) -> set[bytes]:
    """Of its threads: the first may be dead, and others not. Empty if it is gone."""
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        return {parent_and_state(pid, int(thread))[1] for thread in os.listdir(f"/proc/{pid}/task")}
    return set()


def _signal_all(number: int) -> None:
    with contextlib.suppress(ProcessLookupError):  # there is nobody else
        os.kill(-1, number)
