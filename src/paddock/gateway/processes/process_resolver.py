"""Find which process of a sandbox made a connection. See docs/design/commands-and-files.md.

This runs in a process beside the gateway, which starts it before it gives up its powers. It has no secret and no
network.
"""

from __future__ import annotations

import hashlib
import json
import os
import select
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from paddock.gateway.protocols.token_bucket import TokenBucket
from paddock.linux import caps, confine, prctl, proc, proc_events, seccomp, seccomp_profile
from paddock.linux.proc_events import EXEC, EXIT, FORK, Event, EventSocket
from paddock.linux.processes import Search, TooMany

from .fork_server import fork_beside

MOST_BYTES = 128 << 10
"""Largest message: a process with all its ancestors, whose texts are control characters."""
_ANCESTORS = 16
_TEXT_BYTES = 1024
_ARGUMENT_BYTES = 256 << 10
_TICKS = os.sysconf("SC_CLK_TCK")
PER_SECOND, _BURST = 200.0, 2000.0
_GAP_SECONDS = 1.0
_MOST_AT_ONCE = 256
_MOST_KNOWN = 65_536
Say = Callable[[dict[str, Any]], None]
Describe = Callable[[int, int], dict[str, Any]]
_GONE = (FileNotFoundError, ProcessLookupError)
First = tuple[int, int]
"""Pid 1 of a sandbox: its pid, and its start time in ticks since boot."""
HIDDEN = "this user may not look at processes of the sandbox"
NO_PROCESS = "no process in the sandbox holds the connection any more"


def start() -> socket.socket:
    """Start the resolver and return the gateway's end. The process ends when that closes or the gateway dies. Raise
    OSError."""
    return fork_beside("the process resolver", _be)[0]


def _be(gateway: socket.socket) -> None:
    events = None
    with suppress(OSError):
        events = EventSocket()
    _confine()
    _serve(gateway, ProcessResolver(), events)


def _confine() -> None:
    """Under Landlock it could look at no other process."""
    prctl.set_name(b"paddock-procs")
    confine.give_up_powers(*((caps.SYS_PTRACE, caps.DAC_READ_SEARCH) if os.geteuid() == 0 else ()))
    seccomp.Filter(seccomp_profile.build(os.uname().machine, foreign_targets=False)).install()


def _serve(peer: socket.socket, process_resolver: ProcessResolver, events: EventSocket | None) -> None:
    def say(message: dict[str, Any]) -> None:
        peer.send(json.dumps(message).encode(), socket.MSG_DONTWAIT)

    starts = Starts(events, say, describe)
    poll = select.poll()
    poll.register(peer, select.POLLIN)
    if events is not None:
        poll.register(events, select.POLLIN)
    while True:
        ready = {fd for fd, _ in poll.poll()}
        if peer.fileno() in ready and not _answer(peer, process_resolver, starts):
            break
        starts.hear()
    starts.close()


def _answer(peer: socket.socket, process_resolver: ProcessResolver, starts: Starts) -> bool:
    """Answer one question. Return False if the gateway has gone."""
    question = peer.recv(MOST_BYTES)
    if not question:
        return False
    request: dict[str, Any] = json.loads(question)
    sandbox = request["sandbox"]
    answer: dict[str, Any]
    if "watch" not in request:
        try:
            answer = process_resolver.look(sandbox, request["first"], request["inode"])
        except Exception as error:  # one question must not end the answers to all others
            answer = unknown(f"the process resolver failed: {type(error).__name__}")
    elif request["watch"] is None:
        starts.leave(sandbox)
        answer = {"watched": False}
    else:
        why = starts.watch(sandbox, request["instance_id"], pid_of(request["watch"]))
        answer = {"watched": True} if why is None else {"watched": False, "why": why}
    peer.send(json.dumps({"n": request["n"], "answer": answer}).encode())
    return True


def unknown(why: str) -> dict[str, Any]:
    return {"origin": "unknown", "why": why}


class ProcessResolver:
    def __init__(self) -> None:
        self._last: dict[str, int] = {}

    def look(self, sandbox: str, first: First, inode: int) -> dict[str, Any]:
        """Return the details of the process that holds the socket."""
        pid_1 = pid_of(first)
        if pid_1 is None:
            return unknown("the sandbox has ended")
        search = Search()
        try:
            pid = search.holder(pid_1, inode, likely=self._last.get(sandbox))
            if pid is None:
                return unknown(HIDDEN if search.hidden else NO_PROCESS)
            found = describe(pid, pid_1)
        except TooMany as error:
            return unknown(f"the sandbox has {error}")
        except _GONE:
            return unknown(NO_PROCESS)
        self._last[sandbox] = pid
        if len(self._last) > 1024:
            del self._last[next(iter(self._last))]
        return found


def pid_of(first: First) -> int | None:
    """Return the pid, if it is still the same process."""
    pid, start = first
    try:
        return pid if proc.start_time(pid) == start else None
    except (OSError, ValueError):
        return None


def describe(pid: int, first: int) -> dict[str, Any]:
    """FileNotFoundError, ProcessLookupError: it ended meanwhile."""
    started = proc.start_time(pid)
    status = proc.status(pid)
    found = {
        "pid": _inner(status),
        "uid": proc.inner_uid(pid, int(status["Uid"].split()[0])),
        "exe": _link(pid, "exe"),
        "cwd": _link(pid, "cwd"),
        **_arguments(pid),
        "started": started / _TICKS,
        "above": _above(pid, first),
    }
    if proc.start_time(pid) != started:
        raise ProcessLookupError
    return found


def _above(pid: int, first: int) -> list[dict[str, Any]]:
    """Return the parent, that one's parent, and so on to pid 1."""
    found: list[dict[str, Any]] = []
    while pid != first and len(found) < _ANCESTORS:
        pid = proc.parent(pid)
        found.append({"pid": _inner(proc.status(pid)), "exe": _link(pid, "exe")})
    return found


def _inner(status: dict[str, str]) -> int:
    return int(status["NSpid"].split()[-1])


def _link(pid: int, name: str) -> str | None:
    """Return where a link leads, or None if the kernel doesn't show it."""
    try:
        return _words(os.fsencode(os.readlink(f"/proc/{pid}/{name}")))
    except PermissionError:
        return None


def _arguments(pid: int) -> dict[str, Any]:
    """Read the command line, which is the process's own memory: it may have written anything there, of any length."""
    with open(f"/proc/{pid}/cmdline", "rb") as file:
        data = file.read(_ARGUMENT_BYTES)
    kept = data[:_TEXT_BYTES].removesuffix(b"\0")
    found: dict[str, Any] = {
        "argv": [_words(word) for word in kept.split(b"\0")],
        "argv_sha256": hashlib.sha256(data).hexdigest(),
    }
    if len(data) > _TEXT_BYTES:
        found["argv_bytes"] = len(data)
    return found


def _words(text: bytes) -> str:
    return text[:_TEXT_BYTES].decode(errors="backslashreplace")


class _Watched:
    def __init__(self, sandbox: str, instance_id: int, first: int) -> None:
        self.sandbox, self.instance_id, self.first = sandbox, instance_id, first
        self._records = TokenBucket(PER_SECOND, _BURST)
        self.lost = 0
        self.gap_at = -_GAP_SECONDS

    def may(self) -> bool:
        """Allow so many records a second: a program that starts others without end must not fill the log."""
        may = self._records.take()
        self.lost += not may
        return may


class Starts:
    """Reports the programs that start in sandboxes, and their ends, if the policy asks for it.

    The kernel reports every process of the machine. A process belongs to a sandbox by descent from its pid 1. No
    process inside waits for a report. If this looks at a process too late, it still reports the start. `events` is None
    if the kernel doesn't report. `say` raises BlockingIOError if it can't send the report now.
    """

    def __init__(self, events: EventSocket | None, say: Say, describe: Describe) -> None:
        self._events, self._say, self._describe = events, say, describe
        self._watched: dict[str, _Watched] = {}
        self._known: dict[int, tuple[_Watched, int]] = {}
        """By pid. The number is the pid inside, since the report of a start."""

    def watch(self, sandbox: str, instance_id: int, first: int | None) -> str | None:
        """Report processes of a sandbox until `leave`. Return the reason if it can't, or None."""
        if self._events is None or first is None:
            return "this kernel does not tell this user of processes" if first else "the sandbox has ended"
        if not self._watched:
            try:
                self._events.listen(True)
            except OSError as error:
                return f"{error.strerror}"
        self._drop(sandbox)
        watched = self._watched[sandbox] = _Watched(sandbox, instance_id, first)
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
        self._known = {pid: known for pid, known in self._known.items() if known[0] is not watched}
        if watched.lost:
            self._tell(watched, "process.gap", {"why": "it started more than is recorded, and nothing after that"})

    def close(self) -> None:
        if self._events is not None:
            with suppress(OSError):
                self._events.listen(False)

    def hear(self) -> None:
        """Read and process some of the pending events."""
        if self._events is None:
            return
        lost = False
        for _ in range(_MOST_AT_ONCE):
            try:
                event = self._events.read()
            except proc_events.EventsLost:  # once for each processor, one after the other
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
            known = self._known.get(second)
            if known is None:
                self._known.pop(third, None)  # the number of one that has ended
            else:
                self._know(third, known[0])
        elif event.what == EXEC and (known := self._known.get(second)) is not None:
            self._started(second, known[0], event)
        elif event.what == EXIT and first == second and (known := self._known.get(first)) is not None and known[1]:
            watched, inner = known
            self._known[first] = watched, 0
            if watched.may():
                self._tell(watched, "process.end", {"pid": inner, "at": _seconds(event), **_status(third)})

    def _started(self, pid: int, watched: _Watched, event: Event) -> None:
        if not watched.may():
            return
        try:
            detail = self._describe(pid, watched.first)
            self._known[pid] = watched, detail["pid"]
        except (FileNotFoundError, ProcessLookupError):
            detail = {"process": "unknown", "why": "it ended before it was looked at"}
        except Exception as error:  # one that can't be looked at must not end the looking at all others
            detail = {"process": "unknown", "why": f"the process resolver failed: {type(error).__name__}"}
        self._tell(watched, "process.start", {**detail, "at": _seconds(event)})

    def _tell(self, watched: _Watched, what: str, detail: dict[str, Any]) -> None:
        lost, watched.lost = watched.lost, 0
        if lost:
            detail = {**detail, "lost_before": lost}
        detail = {"instance_id": watched.instance_id, **detail}
        record = {"what": what, "sandbox": watched.sandbox, "detail": detail}
        try:
            self._say(record)
        except OSError:
            watched.lost += lost + 1

    def _lost(self) -> None:
        """Note that the kernel has dropped some, an unknown number."""
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
            if self._known.get(pid, (None, 0))[0] is not watched:
                self._know(pid, watched)

    def _know(self, pid: int, watched: _Watched) -> None:
        if len(self._known) >= _MOST_KNOWN:
            self._known = {pid: known for pid, known in self._known.items() if os.path.exists(f"/proc/{pid}")}
        self._known[pid] = watched, 0


def _seconds(event: Event) -> float:
    return event.nanoseconds / 1e9


def _status(code: int) -> dict[str, int]:
    return {"signal": code & 0x7F} if code & 0x7F else {"code": code >> 8 & 0xFF}
