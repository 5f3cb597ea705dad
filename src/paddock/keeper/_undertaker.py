"""The living sandboxes: adopted, watched, killed on time, buried. One function ends a life, whatever ended it."""

from __future__ import annotations

import errno
import heapq
import os
import signal
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field

from paddock.keeper import _exits
from paddock.keeper._errors import JailError
from paddock.keeper._freezer import Freezer, go_on
from paddock.keeper._house import House
from paddock.keeper._jail import Jail
from paddock.keeper._pid_one import send_deadline
from paddock.keeper._plan import JAIL
from paddock.keeper._records import Ended, Record, remove_directory
from paddock.keeper._rest import Rest
from paddock.keeper._spare import SOCKET_BYTES
from paddock.linux import btrfs, cgroups, pidfd, proc

LOST = Ended(limit=None, reason="it was found dead, and there was no keeper to see why")
RESTARTED = Ended(limit=None, reason="the machine was restarted")
EXPIRED = Ended(limit="ttl", reason="its time to live was over")
UNUSED = Ended(limit="retention", reason="it was paused, and nobody resumed it for as long as paused ones are kept")
ORPHANED = Ended(limit=None, reason="the sandbox that it belonged to ended")
UNFINISHED = Ended(limit=None, reason="the keeper died while it was being made", kind="")
MOST_SOCKET_BYTES = 4 * SOCKET_BYTES
_FIRST_PAUSE_SECONDS = 0.01
"""Nobody waits for what is left of the dead: it goes when whoever asked for the death has the answer."""
_LONGEST_PAUSE_SECONDS = 1.0
_LAST_CHANCE_SECONDS = 10.0
_WATCHED_AT_ONCE = 20
_NEXT_TO_NOTHING_SECONDS = 0.002
_SPARED = 64


@dataclass(slots=True)
class Life:
    """One living sandbox. `cause` is set before the keeper ends it; without one it died by itself."""

    jail: Jail
    record: Record
    cause: Ended | None = None
    waiting: list[Callable[[], None]] = field(default_factory=list[Callable[[], None]])
    worked: float = 0.0
    """Processor time that it had used when it was last looked at."""
    counts: dict[str, _Count] = field(default_factory=dict[str, "_Count"])
    """Of its trees, by name."""


@dataclass(slots=True)
class _Count:
    start: int = 0
    """The inode number from which on there may be too many files. Numbers only grow: below it nothing is counted."""
    after: float = 0.0
    """When to count again: counting takes a tenth of the keeper's time at most."""


@dataclass(slots=True)
class _Leaving:
    """What is left of one that was buried: its group, and the directory of its sockets."""

    group: cgroups.Group | None
    directory: str
    again: float
    pause: float = _FIRST_PAUSE_SECONDS


class Undertaker:
    """`on_ended(record, ended)` is called for every death, `on_rest(record, paused)` for every pause and resumption."""

    def __init__(
        self,
        house: House,
        on_ended: Callable[[Record, Ended], None],
        on_rest: Callable[[Record, bool], None] = lambda record, paused: None,
    ) -> None:
        self._house = house
        self._on_ended = on_ended
        self.lives: dict[str, Life] = {}
        self._deadlines: list[tuple[float, str]] = []  # a heap; what is not true any more is passed over
        self._to_watch: list[str] = []
        self._children: dict[str, set[str]] = {}
        self.freezer = Freezer(house.signal)
        self.rest = Rest(house.records, self.freezer, self.lives, on_rest, self._note)
        self._leaving: list[_Leaving] = []

    def adopt(self) -> None:
        """Finds what an earlier keeper left: takes over the living, sweeps away the rest."""
        records = self._house.records
        attempt(records.clear)
        attempt(records.put_back)
        for id in records.living():
            record = records.read(id)
            if record is not None and self._take_over(record):
                continue
            ended = UNFINISHED if record is None else self._fate(record)._replace(kind=record.kind)
            attempt(records.write_ended, id, ended)
            attempt(records.remove, id)
        for life in self.lives.values():
            self.end_orphan(life)
        if self._house.groups is not None:
            owned = {life.record.group for life in self.lives.values()}
            for name in self._house.groups.children() - owned:
                attempt(self._sweep_group, name)

    def add(self, jail: Jail) -> Life:
        return self._enter(Life(jail, jail.record))

    def pass_on(self, life: Life, record: Record) -> None:
        """It is the sandbox of `record` from now on."""
        self.rest.died(life.record.id)
        self.freezer.end(life.record.id)
        del self.lives[life.record.id]
        life.record = life.jail.record = record
        life.counts.clear()
        self.end_orphan(self._enter(life))

    def _enter(self, life: Life) -> Life:
        record = life.record
        self.lives[record.id] = life
        self._note(record)
        if record.parent:
            self._children.setdefault(record.parent, set()).add(record.id)
        self.rest.born(life)
        return life

    def end_orphan(self, life: Life) -> None:
        """What belongs to a sandbox that has ended, or is about to, ends as well."""
        if life.record.parent:
            parent = self.lives.get(life.record.parent)
            if parent is None or parent.cause is not None:
                self.end(life, ORPHANED)

    def _end_children(self, id: str) -> None:
        for child in self._children.pop(id, ()):
            if child in self.lives:
                self.end(self.lives[child], ORPHANED)

    def _note(self, record: Record) -> None:
        if len(self._deadlines) > 2 * len(self.lives) + _SPARED:  # mostly of the dead, whose time has not come
            self._deadlines = [(life.record.deadline, id) for id, life in self.lives.items()]
            heapq.heapify(self._deadlines)
        heapq.heappush(self._deadlines, (record.deadline, record.id))

    def next_deadline(self) -> float | None:
        """The earliest, in seconds of CLOCK_BOOTTIME."""
        while self._deadlines:
            deadline, id = self._deadlines[0]
            life = self.lives.get(id)
            if life is not None and life.cause is None and life.record.deadline == deadline:
                return deadline
            heapq.heappop(self._deadlines)
        return None

    def expire(self, now: float) -> None:
        while (deadline := self.next_deadline()) is not None and deadline <= now:
            life = self.lives[self._deadlines[0][1]]
            self.end(life, UNUSED if life.record.paused else EXPIRED)

    def set_deadline(self, life: Life, deadline: float) -> None:
        """Of a paused one it says how much is left."""
        if life.record.left_seconds is None:
            life.record.deadline = deadline
        else:
            life.record.left_seconds = max(0.0, deadline - proc.boottime())
        self._note(life.record)
        self._house.records.write(life.record)

    def end(self, life: Life, cause: Ended | None) -> None:
        """Sends death to pid 1, with which the kernel ends its whole namespace; `bury` follows when it has come."""
        life.cause = life.cause or cause
        self.freezer.end(life.record.id)
        if life.jail.group is not None:
            life.jail.group.kill_at_once()  # all at the same time, where the kernel can: pid 1 waits for the others
        try:
            self._house.signal(life.jail.pidfd, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self._end_children(life.record.id)

    def bury(self, life: Life) -> Ended:
        """Its pid 1 is dead, and with it every process of its namespace. Takes away what is left of it."""
        jail, id = life.jail, life.record.id
        self.freezer.end(id)
        self.rest.died(id)
        del self.lives[id]  # first: its descriptor's number may soon be another's
        self._end_children(id)
        self._children.get(life.record.parent, set[str]()).discard(id)
        cause = life.cause or self._own_death(life)
        try:
            os.waitpid(jail.pid, 0)
        except ChildProcessError:
            pass  # an earlier keeper's child: the machine's init has reaped it
        jail.close()
        records = self._house.records
        # Until the daemon says that it may be forgotten. On a full disk only the daemon of this moment learns of it.
        attempt(records.write_ended, id, cause._replace(kind=life.record.kind))
        left = f"{id}.{jail.pid}"  # its next incarnation may die before this is removed
        attempt(records.retire, id, self._house.spares, left)
        attempt(self._on_ended, life.record, cause)  # before the answers: who has one may make its next incarnation
        for answer in life.waiting:
            attempt(answer)  # nothing of it runs any more; what follows nobody has to wait for
        life.waiting.clear()  # the keeper collects no garbage: nothing may refer to itself
        if jail.slot is not None:
            attempt(self._house.slots.give_back, jail.slot)
        self._leave(jail.group, left)
        return cause

    def watch_queues(self, lives: list[Life]) -> None:
        """Ends those that hold far more than they may in buffers of sockets.

        Each socket of TCP may go over the ceiling by some tens of KiB, and what netlink answers is counted for nobody:
        thousands of sockets would be the machine's memory.
        """
        for life in lives:
            if _socket_bytes(life) > MOST_SOCKET_BYTES:
                self.end(life, Ended(limit="memory", reason="its sockets held more than they may in their buffers"))

    def next_removal(self) -> float | None:
        """When to remove what is left of the dead, in seconds of CLOCK_BOOTTIME."""
        return min((leaving.again for leaving in self._leaving), default=None)

    def remove_left(self, now: float) -> None:
        """The kernel takes its time with the last of a group's processes; the keeper does not wait for it."""
        for leaving in [leaving for leaving in self._leaving if leaving.again <= now]:
            if self._removed(leaving):
                self._leaving.remove(leaving)
            else:
                leaving.pause = min(leaving.pause * 2, _LONGEST_PAUSE_SECONDS)
                leaving.again = now + leaving.pause

    def close(self) -> None:
        """The last chance of what is still there; the next keeper sweeps what stays even so."""
        for leaving in self._leaving:
            attempt(self._removed, leaving, _LAST_CHANCE_SECONDS)
        self._leaving.clear()

    def next_to_watch(self) -> tuple[list[Life], float]:
        """Some of the living, so that to look at them takes no long time, and which part of all they are.

        Call after call, all have their turn, but for those that have done next to nothing since their last one.
        """
        if not self._to_watch:
            self._to_watch = list(self.lives)
        some, self._to_watch = self._to_watch[:_WATCHED_AT_ONCE], self._to_watch[_WATCHED_AT_ONCE:]
        living = [life for id in some if (life := self.lives.get(id)) is not None and life.cause is None]
        return [life for life in living if _has_worked(life)], min(1.0, _WATCHED_AT_ONCE / max(1, len(self.lives)))

    def watch_inodes(self, lives: list[Life]) -> None:
        """Ends those that have more files than they may: btrfs itself limits bytes only."""
        for life in lives:
            if any(self._has_too_many_files(life, tree) for tree in (life.record.tree, *life.record.trees)):
                self.end(life, Ended(limit="inodes", reason="it had more files than its limit allows"))

    def _has_too_many_files(self, life: Life, name: str) -> bool:
        most, known = int(life.record.limits["inodes"]), life.counts.setdefault(name, _Count())
        start = proc.boottime()
        if start < known.after:
            return False
        try:
            tree = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=self._house.pool)
        except OSError:
            return False
        try:
            highest = btrfs.highest_inode(tree)
            if highest < max(known.start, most):
                return False
            count = 0
            for count in btrfs.count_inodes(tree):
                if count > most:
                    return True
        finally:
            os.close(tree)
        known.start = highest + most - count
        known.after = start + 10 * (proc.boottime() - start)
        return False

    def _own_death(self, life: Life) -> Ended:
        group, kind = life.jail.group, life.record.kind
        its = "pid 1" if kind == JAIL else kind
        if group is not None and group.stats().oom_kills:
            return Ended(limit="memory", reason=f"the kernel killed its {its} because memory ran out")
        if not life.record.paused and life.record.deadline <= proc.boottime() + 0.01:
            return EXPIRED
        return Ended(limit=None, reason=f"its {its} ended")

    def _fate(self, record: Record) -> Ended:
        """What can be said of one that died while there was no keeper."""
        if record.boot != self._house.boot:
            return RESTARTED
        return EXPIRED if not record.paused and record.deadline <= proc.boottime() else LOST

    def _is_alive(self, record: Record) -> bool:
        try:
            return record.boot == self._house.boot and proc.start_time(record.pid) == record.start
        except (OSError, ValueError):
            return False

    def _take_over(self, record: Record) -> bool:
        """False if it is dead."""
        try:
            descriptor = pidfd.open(record.pid)
        except OSError as error:
            if error.errno not in (errno.ESRCH, errno.EINVAL):  # no such process, or a thread of another
                raise
            return False
        # Only now: its number can't pass to another process any more, which would be killed in its place one day.
        if not self._is_alive(record):
            os.close(descriptor)
            return False
        try:
            group = self._group_of(record)
        except OSError:
            os.close(descriptor)
            return False
        if record.slot is not None:
            self._house.slots.reserve(record.slot)
        jail = Jail(pid=record.pid, pidfd=descriptor, group=group, slot=record.slot, record=record)
        life = self.add(jail)
        if record.exits:
            attempt(self.reopen_exits, life)
        if record.paused:
            self.rest.take_over(life)
        else:
            # The keeper before may have died while it was held still, or half-way in resuming it.
            attempt(send_deadline, self._house.records.directory, record.id, record.deadline)
            go_on(jail, self._house.signal)
        return True

    def reopen_exits(self, life: Life) -> None:
        """Listens again for a sandbox whose keeper died, unless the gateway still does. OSError, JailError."""
        jail = life.jail
        if not self._house.root_mode:
            raise JailError("the keeper that held its exits is dead, and an ordinary user's can't make them anew")
        network = _exits.open_network(jail.pid)
        try:
            jail.exits = _exits.listen_again(network)
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
        finally:
            os.close(network)

    def _group_of(self, record: Record) -> cgroups.Group | None:
        groups = self._house.groups
        if groups is None or record.group is None:
            return None
        return groups.of_process(record.pid, record.group).group(record.group)

    def _sweep_group(self, name: str) -> None:
        if self._house.groups is None:
            return
        group = self._house.groups.group(name)
        try:
            group.kill()
        except FileNotFoundError:
            pass  # it is left in some of the hierarchies only, or in none
        self._leave(group, "")

    def _leave(self, group: cgroups.Group | None, directory: str) -> None:
        self._leaving.append(_Leaving(group, directory, proc.boottime() + _FIRST_PAUSE_SECONDS))

    def _removed(self, leaving: _Leaving, timeout_seconds: float = 0.0) -> bool:
        """Whether all of it that can be removed is gone now."""
        if leaving.directory:
            attempt(remove_directory, self._house.spares, leaving.directory)
            leaving.directory = ""
        group = leaving.group
        if group is None:
            return True
        try:
            group.remove(timeout_seconds)
        except OSError as error:
            if error.errno == errno.EBUSY:
                return False
            traceback.print_exc()
        if group.base is not self._house.groups:
            try:
                group.base.remove()
            except OSError:
                group.base.close()  # others of the earlier keeper's are left in it
        return True


def attempt(step: Callable[..., object], *arguments: object) -> None:
    """What fails, for want of room or for a fault of ours, must not keep the rest from being done: the log has it, and
    the next keeper sweeps."""
    try:
        step(*arguments)
    except Exception:
        traceback.print_exc()
        sys.stderr.flush()


def _has_worked(life: Life) -> bool:
    """Whether it has used processor time since it was last asked: without, nothing of it can have grown."""
    used = None if life.jail.group is None else life.jail.group.cpu_seconds()
    if used is not None and used - life.worked < _NEXT_TO_NOTHING_SECONDS:
        return False
    life.worked = used or 0.0
    return True


def _socket_bytes(life: Life) -> int:
    group = life.jail.group
    return proc.netlink_bytes(life.record.pid) + (group.socket_bytes() if group is not None else 0)
