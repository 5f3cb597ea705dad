"""Which programs are started in sandboxes whose policy wants that known, and how they end. Part of the witness.

The kernel tells of every process of the machine; whose it is, is known by descent from the pid 1 of a sandbox. Nobody
inside waits for it, and nothing stops when it does: a start that could not be looked at in time is told as one.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

from paddock.linux import proc, proc_events
from paddock.linux.proc_events import EXEC, EXIT, FORK, Event, News

PER_SECOND, _BURST = 200.0, 2000.0
_GAP_SECONDS = 1.0
_MOST_AT_ONCE = 256
_MOST_KNOWN = 65_536
Say = Callable[[dict[str, Any]], None]
Describe = Callable[[int, int], dict[str, Any]]


class _Watched:
    def __init__(self, sandbox: str, incarnation: int, first: int) -> None:
        self.sandbox, self.incarnation, self.first = sandbox, incarnation, first
        self.credit, self.credited = _BURST, time.monotonic()
        self.lost = 0
        self.gap_at = -_GAP_SECONDS

    def may(self) -> bool:
        """So many a second: a program that starts others without end must not fill the log."""
        now = time.monotonic()
        self.credit = min(_BURST, self.credit + (now - self.credited) * PER_SECOND)
        self.credited = now
        if self.credit < 1:
            self.lost += 1
            return False
        self.credit -= 1
        return True


class Starts:
    """`events`: None where the kernel does not tell. `say` raises BlockingIOError where it can't be said now."""

    def __init__(self, events: News | None, say: Say, describe: Describe) -> None:
        self._events, self._say, self._describe = events, say, describe
        self._watched: dict[str, _Watched] = {}
        self._known: dict[int, _Watched] = {}
        self._inner: dict[int, int] = {}

    def watch(self, sandbox: str, incarnation: int, first: int | None) -> str | None:
        """From now on, until `leave`. Why not, if not."""
        if self._events is None or first is None:
            return "this kernel does not tell this user of processes" if first else "the sandbox has ended"
        if not self._watched:
            try:
                self._events.listen(True)
            except OSError as error:
                return f"{error.strerror}"
        self._drop(sandbox)
        watched = self._watched[sandbox] = _Watched(sandbox, incarnation, first)
        self._look_for(watched)
        return None

    def leave(self, sandbox: str) -> None:
        self._drop(sandbox)
        if not self._watched:
            self.close()

    def _drop(self, sandbox: str) -> None:
        watched = self._watched.pop(sandbox, None)
        if watched is None:
            return
        self._known = {pid: of for pid, of in self._known.items() if of is not watched}
        if watched.lost:
            self._tell(watched, "process.gap", {"why": "it started more than is recorded, and nothing after that"})

    def close(self) -> None:
        if self._events is not None:
            try:
                self._events.listen(False)
            except OSError:
                return

    def hear(self) -> None:
        """Some of what has come."""
        if self._events is None:
            return
        lost = False
        for _ in range(_MOST_AT_ONCE):
            try:
                event = self._events.read()
            except proc_events.Lost:  # once for each processor, one after the other
                lost = True
                continue
            if event is None:
                break
            self._take(event)
        if lost:
            self._lost()

    def _take(self, event: Event) -> None:
        first, second, third, fourth = event.words
        if event.what == FORK and third == fourth:
            watched = self._known.get(second)
            if watched is None:
                self._known.pop(third, None)  # the number of one that has ended
                self._inner.pop(third, None)
            else:
                self._know(third, watched)
        elif event.what == EXEC and (watched := self._known.get(second)) is not None:
            self._started(second, watched, event)
        elif event.what == EXIT and first == second and first in self._inner:
            watched = self._known.get(first)
            inner = self._inner.pop(first)
            if watched is not None and watched.may():
                self._tell(watched, "process.end", {"pid": inner, "at": _seconds(event), **_status(third)})

    def _started(self, pid: int, watched: _Watched, event: Event) -> None:
        if not watched.may():
            return
        try:
            detail = self._describe(pid, watched.first)
            self._inner[pid] = detail["pid"]
        except (FileNotFoundError, ProcessLookupError):
            detail = {"process": "unknown", "why": "it ended before it was looked at"}
        except Exception as error:  # one that can't be looked at must not end the looking at all others
            detail = {"process": "unknown", "why": f"the witness failed: {type(error).__name__}"}
        self._tell(watched, "process.start", {**detail, "at": _seconds(event)})

    def _tell(self, watched: _Watched, what: str, detail: dict[str, Any]) -> None:
        lost, watched.lost = watched.lost, 0
        if lost:
            detail = {**detail, "lost_before": lost}
        said = {"what": what, "sandbox": watched.sandbox, "incarnation": watched.incarnation, "detail": detail}
        try:
            self._say(said)
        except OSError:
            watched.lost += lost + 1

    def _lost(self) -> None:
        """The kernel has dropped some: how many, nobody knows."""
        for watched in self._watched.values():
            self._look_for(watched)
            now = time.monotonic()
            if now - watched.gap_at < _GAP_SECONDS:
                watched.lost += 1
                continue
            watched.gap_at = now
            self._tell(watched, "process.gap", {"why": "the machine starts more processes than can be looked at"})

    def _look_for(self, watched: _Watched) -> None:
        for pid in (watched.first, *proc.descendants(watched.first)):
            self._know(pid, watched)

    def _know(self, pid: int, watched: _Watched) -> None:
        if len(self._known) >= _MOST_KNOWN:
            self._known = {pid: of for pid, of in self._known.items() if os.path.exists(f"/proc/{pid}")}
            self._inner = {pid: inner for pid, inner in self._inner.items() if pid in self._known}
        self._known[pid] = watched


def _seconds(event: Event) -> float:
    return event.nanoseconds / 1e9


def _status(code: int) -> dict[str, int]:
    return {"signal": code & 0x7F} if code & 0x7F else {"code": code >> 8 & 0xFF}
