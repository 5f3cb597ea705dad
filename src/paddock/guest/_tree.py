"""The whole tree of processes of one exec, double-forked daemons included: how it is marked, found and killed.

The mark is RLIMIT_MSGQUEUE: before each start the agent lowers its own hard limit to a number that only this exec
gets. A process without CAP_SYS_RESOURCE in the machine's first user namespace can never raise a hard limit again,
so what an exec starts carries its number, unless it lowers it further, which takes it out of this tree (not out of
the sandbox). gVisor keeps that limit from being set and has no file that shows limits: there it is RLIMIT_RSS, which
nothing enforces, and prlimit(2) shows it of processes of the caller's own ids. Of others a variable is the mark.
"""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import time
from collections.abc import Callable
from typing import NamedTuple, Protocol

from ._loop import Loop, Timer, boottime

# bits/resource.h; `resource` of some builds does not name it.
_MSGQUEUE: int = getattr(resource, "RLIMIT_MSGQUEUE", 12)
_LIMITS = (_MSGQUEUE, resource.RLIMIT_RSS)
_LINE = b"Max msgqueue size"
_SPREAD = 0x4000
_ROUNDS = 64
_PATIENCE_SECONDS = 5.0
MARKER = b"PADDOCK_EXEC"


class Tag(NamedTuple):
    """The number `value` as the hard limit `limit` of a process."""

    limit: int
    value: int

    @property
    def alone(self) -> bool:
        """It can be seen on everybody, so no other mark is needed."""
        return self.limit == _MSGQUEUE

    def is_on(self, pid: int) -> bool:
        return _tag_of(pid, self.limit) == self.value


class Tags:
    """Numbers, each lower than the one before. None once the limit is used up, or where there is none to use."""

    def __init__(self) -> None:
        self._next = 0
        for self._limit in _LIMITS:
            soft, hard = resource.getrlimit(self._limit)
            top = min(value for value in (soft, hard, 1 << 30) if value >= 0)
            # An agent that replaces a dead one starts elsewhere, lest its marks be those of what the other left behind.
            self._next = top - int.from_bytes(os.urandom(4), "big") % _SPREAD if top > 2 * _SPREAD else 0
            if self._next:
                self.leave()
                if Tag(self._limit, self._next + 1).is_on(os.getpid()):
                    return
                self._next = 0

    def take(self) -> Tag | None:
        """To be followed by the start of one exec, and `leave`."""
        if self._next <= 2:
            return None
        tag = self._next
        self._set(tag)
        return Tag(self._limit, tag)

    def leave(self) -> None:
        """From now on the agent itself and its workers carry a number that is no exec's."""
        if self._next > 2:
            self._next -= 2
            self._set(self._next + 1)

    def _set(self, value: int) -> None:
        try:
            resource.setrlimit(self._limit, (value, value))
        except (OSError, ValueError):
            self._next = 0


class Tree(Protocol):
    """Processes that are ended together."""

    def stop(self) -> set[int]:
        """SIGSTOP to everyone, until a look around finds nobody new. They can do nothing any more but be killed."""
        ...

    def members(self) -> set[int]:
        """Everyone alive, zombies excluded."""
        ...


class Orphans:
    """Everyone in this pid namespace that no living agent stands above. For pid 1, to which they have fallen.

    Where the caller is not pid 1: everyone below it, of whom the same is true.
    """

    def __init__(self, agents: Callable[[], set[int]]) -> None:
        self._agents = agents

    def stop(self) -> set[int]:
        stopped: set[int] = set()
        for _ in range(_ROUNDS):
            found, conclusive, dead = self._look()
            for pid in found | dead:
                signal_group(pid, signal.SIGSTOP)
            if found <= stopped and conclusive:
                break
            stopped |= found
        return stopped

    def members(self) -> set[int]:
        return self._look()[0]

    def _look(self) -> tuple[set[int], bool, set[int]]:
        """Return orphans, whether that was all of them (not if one vanished, which may have left a child), and zombies
        of ours. The group of a zombie may live, and keeps its number until the zombie is reaped."""
        found: set[int] = set()
        dead: set[int] = set()
        conclusive = True
        agents = self._agents()
        for pid in processes() - {os.getpid()}:
            parent, state = parent_and_state(pid)
            if state and state in b"ZX":
                if parent == os.getpid():
                    dead.add(pid)
                continue
            orphan = self._is_orphan(pid, parent, state, agents)
            if orphan:
                found.add(pid)
            conclusive = conclusive and orphan is not None
        return found, conclusive, dead

    def _is_orphan(self, pid: int, parent: int, state: bytes, agents: set[int]) -> bool | None:
        """None: somebody on the way up to us died at this moment."""
        if not state:
            return None
        # Read anew for each: a list that is a moment old would count children of somebody who just died as orphans.
        while pid not in agents:
            if parent == os.getpid():
                return True
            if parent <= 1:
                return False  # not below us
            pid = parent
            parent, state = parent_and_state(pid)
            if not state:
                return None
        return False


class Family:
    """Who belongs to one exec: by tag, by descent from `pid`, and where there are no tags by a variable."""

    def __init__(self, *, exec_id: str, pid: int, tag: Tag | None) -> None:
        self._pid = pid
        self._tag = tag
        self._marker = MARKER + b"=" + exec_id.encode()

    def stop(self) -> set[int]:
        parents: dict[int, int] = {}
        seen = {os.getpid()}
        stopped: set[int] = set()
        for _ in range(_ROUNDS):
            count, conclusive = len(stopped), True
            # The newest first, and at once: who forks and exits all the time is quick.
            for pid in sorted(processes() - seen, reverse=True):
                if pid == self._pid or self._marked(pid):
                    signal_group(pid, signal.SIGSTOP)  # of a zombie, too
                    stopped.add(pid)
                parent, state = parent_and_state(pid)
                if state and state not in b"ZX":
                    seen.add(pid)
                    parents[pid] = parent
                else:
                    stopped.discard(pid)
                    conclusive = conclusive and bool(state)  # it vanished: perhaps it left a child
            for pid in self._descendants(parents) - stopped:
                signal_group(pid, signal.SIGSTOP)
                stopped.add(pid)
            if len(stopped) == count and conclusive:
                break
        return stopped

    def members(self) -> set[int]:
        parents: dict[int, int] = {}
        found: set[int] = set()
        for pid in processes() - {os.getpid()}:
            parent, state = parent_and_state(pid)
            if state and state not in b"ZX":
                parents[pid] = parent
                if self._marked(pid):
                    found.add(pid)
        return found | self._descendants(parents)

    def _marked(self, pid: int) -> bool:
        tagged = self._tag is not None and self._tag.is_on(pid)
        if tagged or (self._tag is not None and self._tag.alone):
            return tagged
        return self._marker in _read(b"/proc/%d/environ" % pid).split(b"\0")

    def _descendants(self, parents: dict[int, int]) -> set[int]:
        found = {self._pid}
        while new := {pid for pid, parent in parents.items() if parent in found} - found:
            found |= new
        return found & parents.keys()


def processes() -> set[int]:
    return {int(name) for name in os.listdir("/proc") if name.isdigit()}


def signal_group(pid: int, number: int) -> None:
    """Send it to the process group of `pid`, zombies included, unless that is our own: then to `pid` alone.

    The group gets it at one instant (kill(2), under the kernel's lock of all tasks): a member that forks has either
    forked before, and its child gets it as well, or forks afterwards, which SIGKILL and SIGSTOP prevent. So members
    that fork faster than they can be listed don't escape. A group belongs to one session, and so to one exec.
    """
    with contextlib.suppress(ProcessLookupError, PermissionError):
        group = os.getpgid(pid)
        if group == os.getpgrp():
            os.kill(pid, number)
        else:
            os.killpg(group, number)


def _read(path: bytes) -> bytes:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        return os.read(fd, 65536)
    except OSError:
        return b""
    finally:
        os.close(fd)


def parent_and_state(pid: int, thread: int | None = None) -> tuple[int, bytes]:
    """Of a process, or of one of its threads. No state: it is gone."""
    # The name stands in parentheses and may hold any byte, parentheses too: what follows the last one counts.
    path = b"/proc/%d/stat" % pid if thread is None else b"/proc/%d/task/%d/stat" % (pid, thread)
    fields = _read(path).rpartition(b")")[2].split()
    return (int(fields[1]), fields[0]) if len(fields) > 1 else (-1, b"")


def _tag_of(pid: int, limit: int) -> int | None:
    if limit != _MSGQUEUE:
        with contextlib.suppress(OSError):
            return resource.prlimit(pid, limit)[1]
        return None
    for line in _read(b"/proc/%d/limits" % pid).splitlines():
        if line.startswith(_LINE):
            hard = line[len(_LINE) :].split()[1]
            return int(hard) if hard.isdigit() else None
    return None


def kill_descendants() -> None:
    """Everything below this process, which must be a subreaper; returns when nothing is left, or after five seconds."""
    deadline = boottime() + _PATIENCE_SECONDS
    while boottime() < deadline:
        for pid in Orphans(set).stop():
            signal_group(pid, signal.SIGKILL)
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return
        time.sleep(0.002)


class TreeKill:
    """Stops every member until no new one is found, kills them all, and calls `done(survivors)` when they are gone."""

    def __init__(self, loop: Loop, tree: Tree, done: Callable[[int], None]) -> None:
        self._loop = loop
        self._tree = tree
        self._done = done
        self._deadline = boottime() + _PATIENCE_SECONDS
        self._timer: Timer | None = None
        self._pending: set[int] = set()
        self.finished = False
        self._strike()

    def _strike(self) -> None:
        stopped = self._tree.stop()
        for pid in stopped:
            signal_group(pid, signal.SIGKILL)
        self._pending = stopped
        if self._timer is not None:
            self._timer.cancel()
        if not stopped or boottime() >= self._deadline:
            self.finished = True
            self._loop.soon(self._report)
        else:
            self._timer = self._loop.after(0.05, self._strike)

    def reaped(self, pid: int) -> None:
        """A child was reaped. When it was the last one known, it is time to look once more."""
        self._pending.discard(pid)
        if not self._pending and not self.finished:
            self._strike()

    def _report(self) -> None:
        left = len(self._tree.members())
        if left and boottime() < self._deadline:  # it was being born while it was looked for
            self.finished = False
            self._timer = self._loop.after(0.01, self._strike)
        else:
            self._done(left)
