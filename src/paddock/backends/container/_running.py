"""A running container: its end, its processes, its isolation as the kernel shows it, and its pauses.

Pid 1 pauses on request, and reports other pauses. paddock checks a pause from outside, and trusts no message from
inside. It doesn't use the engine for this.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import math
import os
import signal
from collections.abc import AsyncGenerator, Callable

from paddock.backends import _look as look
from paddock.backends._checks import ok, weak
from paddock.backends.base import Paused
from paddock.backends.guest import EmptyBody, GuestDefaults, Request
from paddock.backends.guest import orders as pid1
from paddock.backends.guest.connection import Channel, GuestConnection
from paddock.backends.pause_clock import PauseClock
from paddock.errors import PaddockError, PlatformError, SandboxDiedError, SandboxError, logged
from paddock.linux import cgroups, proc
from paddock.model import Check, Limit, Process, Usage
from paddock.wire.guest import PauseClockReply, TimesReply

from ._egress import EgressSockets
from ._records import Record, Records
from ._start import CONTROL

_AGAIN_SECONDS = 1.0
_NAMESPACES = ("mnt", "pid", "net", "ipc", "uts", "cgroup")


class RunningContainer:
    """The supervision of pid 1. Its end ends all processes in the container (pid_namespaces(7))."""

    def __init__(self, record: Record, records: Records) -> None:
        """ProcessLookupError: it has ended."""
        self.record, self._records = record, records
        self._fd = os.pidfd_open(record.pid)
        if not record.lives():  # another process has its number
            os.close(self._fd)
            raise ProcessLookupError(record.pid)
        self._loop = asyncio.get_running_loop()
        self.ended: asyncio.Future[None] = self._loop.create_future()
        self._loop.add_reader(self._fd, self._gone)
        self.egress = EgressSockets(late=record.late)
        self.pause_clock = PauseClock()
        self.pause_clock.set(record.left_seconds is not None)
        self._connection: GuestConnection | None = None
        self._connecting = asyncio.Lock()
        self._awake: dict[int, Channel] = {}
        self._holds = itertools.count()
        self._following = self._loop.create_task(self._follow())

    def kill(self) -> None:
        """Kill it. PermissionError: it isn't ours to kill. `ended` waits for its end."""
        if self._fd >= 0:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._fd, signal.SIGKILL)

    def close(self) -> None:
        if self._fd >= 0:
            self._loop.remove_reader(self._fd)
            os.close(self._fd)
            self._fd = -1
            self._following.cancel()
            if self._connection is not None:
                self._connection.close()
            self.egress.close()
            self.pause_clock.end()  # no caller waits for that any more

    def _gone(self) -> None:
        self.close()
        if not self.ended.done():
            self.ended.set_result(None)

    # -- pauses

    async def _follow(self) -> None:
        """Follow pid 1's reports of pauses and resumes, from any cause. Return when pid 1 has ended."""
        while True:
            try:
                channel = await self._open(pid1.pause_clock(self.pause_clock.now))
                clock = await channel.reply(PauseClockReply)
            except OSError:
                return
            except PaddockError:
                await asyncio.sleep(_AGAIN_SECONDS)
            else:
                self.pause_clock.set(clock.paused != 0)
                with logged("note the times", self.record.id):  # it has ended, or the disk is full
                    self._note(clock)

    async def pause(self) -> Paused:
        times = await (await self._ask(pid1.PAUSE)).call(TimesReply)
        await self._check()
        self.pause_clock.begin()
        record = self._note(times)
        return Paused(record.left_seconds, record.deadline)

    async def resume(self) -> float:
        times = await (await self._ask(pid1.RESUME)).call(TimesReply)
        self.pause_clock.end()
        return self._note(times).deadline

    async def set_deadline(self, deadline: float) -> None:
        await (await self._ask(pid1.deadline(deadline))).call(EmptyBody)

    async def ask_times(self) -> None:
        """Ask pid 1 for its remaining TTL, and record it."""
        self._note(await (await self._ask(pid1.TIMES)).call(TimesReply))

    async def stay_awake(self) -> Callable[[], None]:
        hold = next(self._holds)

        def let_go() -> None:
            if (kept := self._awake.pop(hold, None)) is not None:
                kept.close()

        try:
            self._awake[hold] = channel = await self._ask(pid1.AWAKE)
            with channel.attended():
                times = await channel.reply(TimesReply)
        except BaseException:
            let_go()
            raise
        self.pause_clock.end()
        self._note(times)
        return let_go

    @contextlib.asynccontextmanager
    async def hold(self, seconds: int) -> AsyncGenerator[None]:
        """Freeze it for as long as the block takes. PlatformError at its end if it did not stand throughout."""
        channel = await self._ask(pid1.hold(seconds))
        with contextlib.closing(channel):
            with channel.attended():
                await channel.reply(EmptyBody)
            await self._check()
            yield
            if channel.end.done:
                raise PlatformError(
                    f"the sandbox did not stand still for as long as it took ({seconds} s at most)", hint="try again"
                )
        with channel.attended():
            await channel.end.get()

    async def _check(self) -> None:
        if not await asyncio.to_thread(stands_still, self.record):
            raise SandboxError("not all of the sandbox stands still, although its pid 1 says so", hint="try again")

    def _note(self, times: TimesReply | PauseClockReply) -> Record:
        left, deadline = pid1.seconds(times.left), pid1.seconds(times.deadline)
        until = math.inf if deadline is None else deadline
        record = self._records.note_times(self.record.id, self.record.instance_id, left, until)
        if record is None:
            raise _dead()
        return record

    async def _ask(self, request: Request) -> Channel:
        try:
            return await self._open(request)
        except OSError:
            raise _dead() from None

    async def _open(self, request: Request) -> Channel:
        """Return a channel to pid 1. Raises OSError if it has ended."""
        async with self._connecting:
            if self._connection is None or self._connection.closed:
                place = self._records.place(self.record.id)
                self._connection = await GuestConnection.connect(place / f"{CONTROL}.sock", GuestDefaults())
                for hold in self._awake:  # of a connection that was lost
                    self._awake[hold] = self._connection.open(pid1.AWAKE)
        return self._connection.open(request)


def _dead() -> PaddockError:
    return SandboxDiedError("the sandbox is gone", hint="`paddock ls --all` says why")


def stands_still(record: Record) -> bool:
    """Tell whether only pid 1 runs, or another program has paused the container through the engine."""
    others = proc.descendants(record.pid) if record.lives() else []
    return (bool(others) and all(map(proc.stands, others))) or is_frozen(record)


def is_frozen(record: Record) -> bool:
    """Tell whether its control group is frozen, as by an engine. Then pid 1 can't enforce a deadline."""
    with contextlib.suppress(OSError):
        return record.lives() and cgroups.is_frozen(record.pid)
    return False


def usage(record: Record) -> Usage:
    """OSError: it has ended."""
    stats = cgroups.stats(record.pid)
    strikes = {Limit.MEMORY: stats.oom_kills, Limit.PROCESSES: stats.processes_refused}
    return Usage(
        memory_bytes=stats.memory_bytes,
        memory_peak_bytes=stats.memory_peak_bytes,
        processes=stats.processes,
        cpu_seconds=stats.cpu_seconds,
        strikes={limit: count for limit, count in strikes.items() if count},
    )


def table(record: Record) -> tuple[Process, ...]:
    """Return every process of its pid namespace, or () if it has ended."""
    found = look.family(record.pid, record.lives)
    return look.table(found, look.ids(record.pid) if found else [])


def posture(record: Record, allowed: int) -> tuple[Check, ...]:
    """Return the present isolation, or () if it has ended. `allowed` are the permitted capabilities of root inside."""
    found = look.family(record.pid, record.lives)
    if not found:
        return ()
    states = {one.pid: proc.status(one.pid) for one in found if one.state not in "ZX"}
    more = [str(pid) for pid, status in states.items() if int(status["CapBnd"], 16) & ~allowed]
    free = [str(pid) for pid, status in states.items() if status["Seccomp"] != "2"]
    gain = [str(pid) for pid, status in states.items() if status["NoNewPrivs"] != "1"]
    alike = any((ids.inside, ids.outside) == (0, 0) for ids in look.ids(record.pid))
    guest = "root inside is not kept from what serves the sandbox: nothing that it says grants anything"
    root = "uid 0 of the host, without its powers" if alike else "no uid of the host's system"
    return (
        _check("capabilities", more, "more than a sandbox's", "those over files and processes of its own, at most"),
        _check("privileges", gain, "may gain some by exec", "none are gained by exec"),
        _check(
            "system calls",
            free,
            "no filter",
            f"filtered by the engine, and below pid 1 by the jail's filter too, for all {len(states)} processes",
        ),
        _namespaces(record.pid),
        (weak if alike else ok)("posture", "identity", f"root inside is {root}"),
        weak("posture", "guest", guest),
    )


def _namespaces(pid: int) -> Check:
    if look.shared(pid, _NAMESPACES) == ["cgroup"]:  # Podman 4.3 passes over the demand for one
        words = "shares cgroup: it reads the names of its groups, and can write none"
        return weak("posture", "namespaces", words)
    return look.namespaces(pid, _NAMESPACES)


def _check(name: str, pids: list[str], problem: str, detail: str) -> Check:
    return look.posture(name, f"{problem}: processes {', '.join(pids[:8])} of the host" if pids else None, detail)
