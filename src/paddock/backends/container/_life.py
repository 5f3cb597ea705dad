"""A running container as the kernel shows it: its end, its processes, its walls. Neither engine nor guest is asked."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from functools import partial

from paddock.backends import _look as look
from paddock.linux import cgroups, proc
from paddock.model import Check, Limit, Process, Usage

from ._records import Record, Records
from ._rest import Rest
from ._ways import Ways

_NAMESPACES = ("mnt", "pid", "net", "ipc", "uts", "cgroup")


class Life:
    """Of pid 1, whose end is the end of all that runs in the container (pid_namespaces(7))."""

    def __init__(self, record: Record, records: Records) -> None:
        """ProcessLookupError: it has ended."""
        self.record = record
        self._fd = os.pidfd_open(record.pid)
        if not record.lives():  # somebody else has its number
            os.close(self._fd)
            raise ProcessLookupError(record.pid)
        self._loop = asyncio.get_running_loop()
        self.ended: asyncio.Future[None] = self._loop.create_future()
        self._loop.add_reader(self._fd, self._gone)
        self.ways = Ways(late=record.late)
        self.rest = Rest(record, records, partial(stands_still, record))
        self._following = self._loop.create_task(self.rest.follow())

    def kill(self) -> bool:
        """False: it is not ours to kill. Its end is waited for in `ended`."""
        if self._fd < 0:
            return True
        try:
            signal.pidfd_send_signal(self._fd, signal.SIGKILL)
        except ProcessLookupError:
            return True
        except PermissionError:
            return False
        return True

    def close(self) -> None:
        if self._fd >= 0:
            self._loop.remove_reader(self._fd)
            os.close(self._fd)
            self._fd = -1
            self._following.cancel()
            self.rest.close()
            self.ways.close()
            self.rest.stillness.end()  # whoever waits for that waits no more

    def _gone(self) -> None:
        self.close()
        if not self.ended.done():
            self.ended.set_result(None)


def stands_still(record: Record) -> bool:
    """Nobody but pid 1 runs, or not even that: somebody has had its engine pause it."""
    others = proc.descendants(record.pid) if record.lives() else []
    return (bool(others) and all(map(proc.stands, others))) or is_frozen(record)


def is_frozen(record: Record) -> bool:
    """By its control group, as an engine does it. Then pid 1 holds no deadline."""
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
    """Every process of its pid namespace; empty if it has ended."""
    found = look.family(record.pid, record.lives)
    return look.table(found, look.ids(record.pid) if found else [])


def posture(record: Record, allowed: int) -> tuple[Check, ...]:
    """What holds at this moment. Empty if it has ended. `allowed` are the capabilities that root inside may have."""
    found = look.family(record.pid, record.lives)
    if not found:
        return ()
    states = {one.pid: proc.status(one.pid) for one in found if one.state not in "ZX"}
    more = [str(pid) for pid, status in states.items() if int(status["CapBnd"], 16) & ~allowed]
    free = [str(pid) for pid, status in states.items() if status["Seccomp"] != "2"]
    gain = [str(pid) for pid, status in states.items() if status["NoNewPrivs"] != "1"]
    alike = any((ids.inside, ids.outside) == (0, 0) for ids in look.ids(record.pid))
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
        Check(area="posture", name="identity", status="weak" if alike else "ok", detail=f"root inside is {root}"),
        Check(
            area="posture",
            name="guest",
            status="weak",
            detail="root inside is not kept from what serves the sandbox: nothing that it says grants anything",
        ),
    )


def _namespaces(pid: int) -> Check:
    if look.shared(pid, _NAMESPACES) == ["cgroup"]:  # Podman 4.3 passes over the wish for one
        words = "shares cgroup: it reads the names of its groups, and can write none"
        return Check(area="posture", name="namespaces", status="weak", detail=words)
    return look.namespaces(pid, _NAMESPACES)


def _check(name: str, pids: list[str], problem: str, detail: str) -> Check:
    return look.check(name, f"{problem}: processes {', '.join(pids[:8])} of the host" if pids else None, detail)
