"""Stop a sandbox: for an instant, to copy its files; or until a resume, on request or after its idle time.

It uses the freezer of its control group, or else SIGSTOP to all its processes. Pid 1 holds the deadline. A short stop
leaves it running. In a pause it stops too, because it would continue the others; the supervisor alone holds the
deadline then. Processes that were stopped before continue with the others afterwards.

The record says that a sandbox is paused before it is, so that the next supervisor knows. The TTL stops too: the record
keeps what is left, and the deadline becomes that of the retention. A resume writes the new deadline to the record, then
to pid 1's socket, and then lets it run.
"""

from __future__ import annotations

import signal
import time
import traceback
from collections.abc import Callable, Mapping
from contextlib import suppress

from paddock.linux import pidfd, proc
from paddock.linux.descriptors import closing
from paddock.supervisor._orders import send_deadline
from paddock.supervisor._supervised import Supervised
from paddock.supervisor.records import Record, Records

STOP_SECONDS = 0.5
HOLD_SECONDS = 30.0
_PAUSE_SECONDS = 0.0005
Send = Callable[[int, int], None]
"""Send a signal to the process of a pidfd."""
Holder = int
"""A number that the daemon chose."""
_STANDING = frozenset("TtZX")  # stopped, traced, dead (proc_pid_stat(5))


def stop(sandbox: Supervised, send: Send, *, with_init: bool = False) -> None:
    """Wait until none of its processes runs. Raises TimeoutError if that takes too long, and then all continue."""
    if sandbox.group is not None and sandbox.group.base.freezes:
        sandbox.group.freeze(STOP_SECONDS)
        return
    deadline = time.monotonic() + STOP_SECONDS
    while running := [pid for pid in _processes(sandbox, with_init) if proc.state(pid) not in _STANDING]:
        if time.monotonic() > deadline:
            go_on(sandbox, send)
            raise TimeoutError(f"processes {running} did not stop")
        _signal(running, signal.SIGSTOP, send)
        time.sleep(_PAUSE_SECONDS)
        # A caller of vfork(2) waits in the kernel, uninterruptibly, until its child has called exec(2).
        waiting = [pid for pid in running if proc.state(pid) == "D"]
        _signal([child for pid in waiting for child in proc.descendants(pid)], signal.SIGCONT, send)


def go_on(sandbox: Supervised, send: Send) -> None:
    """Continue its processes; do nothing if it was not stopped."""
    if sandbox.group is not None and sandbox.group.base.freezes:
        sandbox.group.thaw()
        return
    _signal([pid for pid in _processes(sandbox, with_init=True) if proc.state(pid) == "T"], signal.SIGCONT, send)


def _stands(sandbox: Supervised) -> bool:
    """Ask the kernel whether none of its processes runs."""
    if sandbox.group is not None and sandbox.group.base.freezes:
        return sandbox.group.is_frozen()
    return all(proc.state(pid) in _STANDING for pid in _processes(sandbox, with_init=True))


def _processes(sandbox: Supervised, with_init: bool) -> list[int]:
    """Return its processes, pid 1 first: it starts others, and continues them."""
    pid = sandbox.record.pid
    return [*([pid] if with_init else []), *proc.descendants(pid)]


def _signal(pids: list[int], number: int, send: Send) -> None:
    for pid in pids:
        with suppress(ProcessLookupError), closing(pidfd.open(pid)) as process:
            send(process, number)


class Pauses:
    """Keep track of stops, pauses and idle times.

    Of holds: none lasts longer than HOLD_SECONDS. Of pauses: they outlive daemons and supervisors. Of holders that keep
    a sandbox awake. It calls `told(record, paused)` for every pause and resume, and `moved(record)` for each new
    deadline.
    """

    def __init__(
        self,
        records: Records,
        send: Send,
        sandboxes: Mapping[str, Supervised],
        report: Callable[[Record, bool], None],
        moved: Callable[[Record], None],
    ) -> None:
        self._records, self._send, self._sandboxes, self._report, self._moved = records, send, sandboxes, report, moved
        self._held: dict[str, dict[Holder, float]] = {}
        self._paused: set[str] = set()
        self._awake: dict[str, set[Holder]] = {}
        self._idle_at: dict[str, float] = {}
        """When each will have been idle for long enough."""

    def begin(self, sandbox: Supervised) -> None:
        """Start its idle time. A holder that kept it awake under another supervisor asks again, or is gone."""
        if sandbox.record.idle_seconds:
            self._awake[sandbox.record.id] = set()
            self._settle(sandbox.record)

    def end(self, sandbox: Supervised) -> None:
        """Release it from all holds: a stopped process can't die everywhere (version 1 of control groups)."""
        id = sandbox.record.id
        if self._held.pop(id, None) is not None or id in self._paused:
            self._paused.discard(id)
            self._go_on(sandbox)

    def forget(self, sandbox: Supervised) -> None:
        self.end(sandbox)
        self._awake.pop(sandbox.record.id, None)
        self._idle_at.pop(sandbox.record.id, None)

    def gone(self) -> None:
        """Release all that the daemon held or kept awake: it is gone."""
        for id, holders in list(self._held.items()):
            for who in list(holders):
                self.let_go(id, who)
        for id, awake in list(self._awake.items()):
            for who in list(awake):
                self.let_rest(id, who)

    def deadlines(self) -> list[float]:
        return [*self._idle_at.values(), *(until for holders in self._held.values() for until in holders.values())]

    def expire(self, now: float) -> None:
        for id, holders in list(self._held.items()):
            for who in [who for who, until in holders.items() if until <= now]:
                self.let_go(id, who)
        for id in [id for id, at in self._idle_at.items() if at <= now]:
            sandbox = self._sandboxes.get(id)
            del self._idle_at[id]
            if sandbox is None or sandbox.cause is not None:
                continue
            try:
                self.pause(sandbox)
            except OSError:  # one of its processes did not stop in time: it is tried again when its time has come again
                self._settle(sandbox.record)

    # -- for an instant

    def hold(self, sandbox: Supervised, who: Holder) -> None:
        """Stop it for a holder. Raises TimeoutError or OSError if it could not be stopped, and then it continues."""
        id = sandbox.record.id
        if id not in self._held and id not in self._paused:
            stop(sandbox, self._send)
        self._held.setdefault(id, {})[who] = proc.boottime() + HOLD_SECONDS

    def let_go(self, id: str, who: Holder) -> bool:
        """Release one hold. Return False if `who` no longer held it."""
        holders = self._held.get(id, {})
        was_held = holders.pop(who, None) is not None
        if was_held and not holders:
            del self._held[id]
            if id not in self._paused:
                self._go_on(self._sandboxes[id])
        return was_held

    # -- until it is resumed

    def paused(self) -> list[Record]:
        """Return the records of those that are paused, as the kernel says."""
        return [self._sandboxes[id].record for id in self._paused if _stands(self._sandboxes[id])]

    def pause(self, sandbox: Supervised) -> None:
        """Pause it, even if a holder keeps it awake. Raises TimeoutError or OSError if it could not be stopped, and
        then it continues."""
        record = sandbox.record
        if record.paused:
            return
        now, deadline = proc.boottime(), record.deadline
        record.paused, record.left_seconds = True, max(0.0, deadline - now)
        record.deadline = now + record.retention_seconds
        try:
            self._records.write(record)
            self._stop(sandbox)
        except OSError:
            self._not_paused(record, deadline)
            raise
        finally:
            self._moved(record)
        self._idle_at.pop(record.id, None)
        self._report(record, True)

    def take_over(self, sandbox: Supervised) -> None:
        """Take over one that was paused, or half paused, when the last supervisor died."""
        try:
            self._stop(sandbox)
        except OSError:
            self._resumed(sandbox.record)
            self._settle(sandbox.record)

    def resume(self, sandbox: Supervised) -> bool:
        """Resume it; return False if it was not paused. A record that can't be written (full disk) stops nothing."""
        record = sandbox.record
        if not record.paused:
            return False
        self._resumed(record)
        if record.id in self._paused:
            self._paused.remove(record.id)
            if record.id not in self._held:
                self._go_on(sandbox)
        self._settle(record)
        self._report(record, False)
        return True

    def keep_awake(self, sandbox: Supervised, who: Holder) -> bool:
        """Keep it awake until `let_rest`. Return whether it was paused."""
        self._awake.setdefault(sandbox.record.id, set()).add(who)
        self._idle_at.pop(sandbox.record.id, None)
        return self.resume(sandbox)

    def let_rest(self, id: str, who: Holder) -> None:
        awake, sandbox = self._awake.get(id), self._sandboxes.get(id)
        if awake is not None and who in awake:
            awake.remove(who)
            if sandbox is not None:
                self._settle(sandbox.record)

    def _settle(self, record: Record) -> None:
        """Start its idle time, if it has one, runs, and has no holder."""
        if record.idle_seconds and not record.paused and not self._awake.get(record.id):
            self._idle_at[record.id] = proc.boottime() + record.idle_seconds

    def _stop(self, sandbox: Supervised) -> None:
        stop(sandbox, self._send, with_init=True)
        self._paused.add(sandbox.record.id)

    def _go_on(self, sandbox: Supervised) -> None:
        with suppress(FileNotFoundError):
            go_on(sandbox, self._send)

    def _resumed(self, record: Record) -> None:
        """Restore its TTL: pid 1, stopped at this moment, finds the new deadline when it runs."""
        # Without `left_seconds` it was paused by a supervisor whose TTLs went on.
        deadline = record.deadline if record.left_seconds is None else proc.boottime() + record.left_seconds
        self._not_paused(record, deadline)
        self._moved(record)
        try:
            send_deadline(self._records.directory, record.id, deadline)
        except OSError:  # it is dead, or ends by the deadline that it has: never too late
            traceback.print_exc()

    def _not_paused(self, record: Record, deadline: float) -> None:
        record.paused, record.left_seconds, record.deadline = False, None, deadline
        try:
            self._records.write(record)
        except OSError:
            traceback.print_exc()
