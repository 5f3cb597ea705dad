"""Keep the living sandboxes: adopt, watch, kill on time, reap. One function ends a sandbox, for every cause."""

from __future__ import annotations

import errno
import heapq
import os
import signal
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from paddock.linux import cgroups, pidfd, proc
from paddock.supervisor import _late
from paddock.supervisor._context import SupervisorContext
from paddock.supervisor._orders import send_deadline
from paddock.supervisor._pause import Pauses, go_on
from paddock.supervisor._supervised import Measurements, Supervised
from paddock.supervisor.plan import JAIL
from paddock.supervisor.records import Ended, Record, remove_directory

LOST = Ended(limit=None, reason="it was found dead, and there was no supervisor to see why")
RESTARTED = Ended(limit=None, reason="the machine was restarted")
EXPIRED = Ended(limit="ttl", reason="its time to live was over")
UNUSED = Ended(limit="retention", reason="it was paused, and nobody resumed it for as long as paused ones are kept")
ORPHANED = Ended(limit=None, reason="the sandbox that it belonged to ended")
UNFINISHED = Ended(limit=None, reason="the supervisor died while it was being made", kind="")
_FIRST_PAUSE_SECONDS = 0.01
"""Remains of a dead sandbox go after the caller that killed it has its answer."""
_LONGEST_PAUSE_SECONDS = 1.0
_LAST_CHANCE_SECONDS = 10.0
_SPARED = 64


@dataclass(slots=True)
class _Remains:
    """Hold the remains of a reaped sandbox: its group, and the directory of its sockets."""

    group: cgroups.Group | None
    directory: str
    again: float
    pause: float = _FIRST_PAUSE_SECONDS


class Running:
    """Hold the living sandboxes. `tell(event, record, ...)` hears of every death, `ended`, and of every pause and
    resume."""

    def __init__(self, context: SupervisorContext, tell: Callable[..., None], has_daemon: Callable[[], bool]) -> None:
        self._context = context
        self._tell = tell
        self._has_daemon = has_daemon
        self.sandboxes: dict[str, Supervised] = {}
        self._deadlines: list[tuple[float, str]] = []  # a heap; what is not true any more is passed over
        self._children: dict[str, set[str]] = {}
        self.pauses = Pauses(context.records, context.signal, self.sandboxes, self._tell_pause, self._note)
        self._remains: list[_Remains] = []

    def _tell_pause(self, record: Record, paused: bool) -> None:
        self._tell("paused" if paused else "resumed", record)

    def adopt(self) -> None:
        """Find what an earlier supervisor left: take over the living, remove the rest."""
        records = self._context.records
        attempt(records.clear)
        attempt(records.put_back)
        for id in records.living():
            record = records.read(id)
            if record is not None and self._take_over(record):
                continue
            ended = UNFINISHED if record is None else self._fate(record)._replace(kind=record.kind)
            attempt(records.write_ended, id, ended)
            attempt(records.remove, id)
        for sandbox in self.sandboxes.values():
            self.end_orphan(sandbox)
        if self._context.groups is not None:
            owned = {sandbox.record.group for sandbox in self.sandboxes.values()}
            for name in self._context.groups.children() - owned:
                attempt(self._sweep, self._context.groups.group(name))

    def pass_on(self, sandbox: Supervised, record: Record) -> None:
        """Make it the sandbox of `record` from now on."""
        self.pauses.forget(sandbox)
        del self.sandboxes[sandbox.record.id]
        sandbox.record = record
        sandbox.measured = Measurements()
        self.add(sandbox)
        self.end_orphan(sandbox)

    def add(self, sandbox: Supervised) -> None:
        record = sandbox.record
        self.sandboxes[record.id] = sandbox
        self._note(record)
        if record.parent:
            self._children.setdefault(record.parent, set()).add(record.id)
        self.pauses.begin(sandbox)

    def end_orphan(self, sandbox: Supervised) -> None:
        """End the sandbox if its parent has ended, or is about to."""
        if sandbox.record.parent:
            parent = self.sandboxes.get(sandbox.record.parent)
            if parent is None or parent.cause is not None:
                self.end(sandbox, ORPHANED)

    def _end_children(self, id: str) -> None:
        for child in self._children.pop(id, ()):
            if child in self.sandboxes:
                self.end(self.sandboxes[child], ORPHANED)

    def _note(self, record: Record) -> None:
        if len(self._deadlines) > 2 * len(self.sandboxes) + _SPARED:  # mostly of the dead, whose time has not come
            self._deadlines = [(sandbox.record.deadline, id) for id, sandbox in self.sandboxes.items()]
            heapq.heapify(self._deadlines)
        heapq.heappush(self._deadlines, (record.deadline, record.id))

    def next_deadline(self) -> float | None:
        """Return the earliest deadline, in seconds of CLOCK_BOOTTIME."""
        while self._deadlines:
            deadline, id = self._deadlines[0]
            sandbox = self.sandboxes.get(id)
            if sandbox is not None and sandbox.cause is None and sandbox.record.deadline == deadline:
                return deadline
            heapq.heappop(self._deadlines)
        return None

    def expire(self, now: float) -> None:
        while (deadline := self.next_deadline()) is not None and deadline <= now:
            sandbox = self.sandboxes[self._deadlines[0][1]]
            self.end(sandbox, UNUSED if sandbox.record.paused else EXPIRED)

    def set_deadline(self, sandbox: Supervised, deadline: float) -> None:
        """Set its deadline. Of a paused one, set how much of its TTL is left."""
        if sandbox.record.left_seconds is None:
            sandbox.record.deadline = deadline
        else:
            sandbox.record.left_seconds = max(0.0, deadline - proc.boottime())
        self._note(sandbox.record)
        self._context.records.write(sandbox.record)

    def end(self, sandbox: Supervised, cause: Ended | None) -> None:
        """Kill pid 1, with which the kernel ends its whole pid namespace; `reap` follows when it is dead."""
        sandbox.cause = sandbox.cause or cause
        self.pauses.end(sandbox)
        if sandbox.group is not None:
            sandbox.group.kill_at_once()  # all at the same time, where the kernel can: pid 1 waits for the others
        with suppress(ProcessLookupError):
            self._context.signal(sandbox.pidfd, signal.SIGKILL)
        self._end_children(sandbox.record.id)

    def reap(self, sandbox: Supervised) -> Ended:
        """Reap its pid 1, with which every process of its namespace died. Remove the rest of it."""
        record, id = sandbox.record, sandbox.record.id
        self.pauses.forget(sandbox)
        del self.sandboxes[id]  # first: its descriptor's number may soon be another's
        self._end_children(id)
        self._children.get(record.parent, set[str]()).discard(id)
        cause = sandbox.cause or self._own_death(sandbox)
        with suppress(ChildProcessError):  # an earlier supervisor's child: the machine's init has reaped it
            os.waitpid(record.pid, 0)
        sandbox.close()
        records = self._context.records
        # Until the daemon says that it may be forgotten. On a full disk only the daemon of this moment learns of it.
        # A daemon that waits for the end of what it has killed knows why: it is written only if that daemon goes.
        keep = records.keep_ended if sandbox.waiting and self._has_daemon() else records.write_ended
        attempt(keep, id, cause._replace(kind=record.kind))
        left = f"{id}.{record.pid}"  # its next start may die before this is removed
        attempt(records.retire, id, self._context.spares, left)
        # Before the answers: the daemon may then create it again.
        attempt(partial(self._tell, "ended", record, limit=cause.limit, reason=cause.reason))
        for answer in sandbox.waiting:
            attempt(answer)  # nothing of it runs any more; no caller waits for the rest
        sandbox.waiting.clear()  # the supervisor collects no garbage: nothing may refer to itself
        if record.slot is not None:
            attempt(self._context.slots.give_back, record.slot)
        self._leave(sandbox.group, left)
        return cause

    def next_removal(self) -> float | None:
        """Return when to remove remains of the dead, in seconds of CLOCK_BOOTTIME."""
        return min((remains.again for remains in self._remains), default=None)

    def remove_left(self, now: float) -> None:
        """Remove the directories of ended groups. The kernel takes some time for a group's last processes."""
        for remains in [remains for remains in self._remains if remains.again <= now]:
            if self._removed(remains):
                self._remains.remove(remains)
            else:
                remains.pause = min(remains.pause * 2, _LONGEST_PAUSE_SECONDS)
                remains.again = now + remains.pause

    def close(self) -> None:
        """Remove what is still there. The next supervisor removes what stays even so."""
        attempt(self._context.records.write_kept)
        for remains in self._remains:
            attempt(self._removed, remains, _LAST_CHANCE_SECONDS)
        self._remains.clear()

    def _own_death(self, sandbox: Supervised) -> Ended:
        group, kind = sandbox.group, sandbox.record.kind
        its = "pid 1" if kind == JAIL else kind
        if group is not None and group.stats().oom_kills:
            return Ended(limit="memory", reason=f"the kernel killed its {its} because memory ran out")
        if not sandbox.record.paused and sandbox.record.deadline <= proc.boottime() + 0.01:
            return EXPIRED
        return Ended(limit=None, reason=f"its {its} ended")

    def _fate(self, record: Record) -> Ended:
        """Return the known cause for one that died while there was no supervisor."""
        if record.boot != self._context.boot:
            return RESTARTED
        return EXPIRED if not record.paused and record.deadline <= proc.boottime() else LOST

    def _take_over(self, record: Record) -> bool:
        """Take over a living sandbox of an earlier supervisor. Return False if it is dead."""
        try:
            descriptor = pidfd.open(record.pid)
        except OSError as error:
            if error.errno not in (errno.ESRCH, errno.EINVAL):  # no such process, or a thread of another
                raise
            return False
        # Only now: its number can't pass to another process any more, which would be killed in its place one day.
        if not proc.is_same(record.pid, record.start, record.boot):
            os.close(descriptor)
            return False
        try:
            group = self._group_of(record)
        except OSError:
            os.close(descriptor)
            return False
        if record.slot is not None:
            self._context.slots.reserve(record.slot)
        sandbox = Supervised(record=record, pidfd=descriptor, group=group)
        self.add(sandbox)
        if record.exits:
            attempt(_late.reopen, self._context, sandbox)
        if record.paused:
            self.pauses.take_over(sandbox)
        else:
            # The supervisor before may have died while it was held still, or half-way in resuming it.
            attempt(send_deadline, self._context.records.directory, record.id, record.deadline)
            go_on(sandbox, self._context.signal)
        return True

    def _group_of(self, record: Record) -> cgroups.Group | None:
        groups = self._context.groups
        if groups is None or record.group is None:
            return None
        return groups.of_process(record.pid, record.group).group(record.group)

    def _sweep(self, group: cgroups.Group) -> None:
        with suppress(FileNotFoundError):  # it is left in some of the hierarchies only, or in none
            group.kill()
        self._leave(group, "")

    def _leave(self, group: cgroups.Group | None, directory: str) -> None:
        self._remains.append(_Remains(group, directory, proc.boottime() + _FIRST_PAUSE_SECONDS))

    def _removed(self, remains: _Remains, timeout_seconds: float = 0.0) -> bool:
        """Remove what can be removed now. Return whether that was all of it."""
        if remains.directory:
            attempt(remove_directory, self._context.spares, remains.directory)
            remains.directory = ""
        group = remains.group
        if group is None:
            return True
        try:
            group.remove(timeout_seconds)
        except OSError as error:
            if error.errno == errno.EBUSY:
                return False
            traceback.print_exc()
        if group.base is not self._context.groups:
            try:
                group.base.remove()
            except OSError:
                group.base.close()  # others of the earlier supervisor's are left in it
        return True


def attempt(step: Callable[..., object], *arguments: object) -> None:
    """Run a step, and log its failure (no room, or a bug), so that the remaining steps still run. The next supervisor
    cleans up after it."""
    try:
        step(*arguments)
    except Exception:
        traceback.print_exc()
