"""Inspect a jail from outside: its processes and its isolation, as the kernel shows them. It asks nothing inside."""

from __future__ import annotations

import os
from functools import partial

from paddock.backends import _look as look
from paddock.backends._checks import posture as _check
from paddock.linux import namespaces, proc
from paddock.linux.namespaces import IdMap
from paddock.model import Check, Process
from paddock.supervisor.layout import ID_COUNT, ORDINARY_ID, range_base
from paddock.supervisor.records import Record

_CAPABILITIES = ("CapInh", "CapPrm", "CapEff", "CapAmb")
_NAMESPACES = ("mnt", "pid", "net", "ipc", "uts", "user", "cgroup")


def table(record: Record) -> tuple[Process, ...]:
    """Every process of its pid namespace; empty if it has ended."""
    found = look.family(record.pid, partial(proc.is_same, record.pid, record.start, record.boot))
    return look.table(found, _ids(record) if found else [])


def posture(record: Record) -> tuple[Check, ...]:
    """Return what holds at this moment. Empty if it has ended."""
    found = look.family(record.pid, partial(proc.is_same, record.pid, record.start, record.boot))
    if not found:
        return ()
    first, others = found[0], found[1:]
    status = proc.status(first.pid)
    held = [name for name in _CAPABILITIES if int(status[name], 16)]
    free = [str(one.inner_pid) for one in others if not one.filtered and one.state not in "ZX"]
    return (
        _check("capabilities", f"pid 1 holds {', '.join(held)}" if held else None, "pid 1 holds none"),
        _check("privileges", _unless(status["NoNewPrivs"] == "1", "pid 1 may gain some"), "none are gained by exec"),
        _check(
            "system calls",
            f"no filter on {', '.join(free[:8])}" if free else None,
            f"filtered for all {len(others)} processes below pid 1",
        ),
        look.namespaces(first.pid, _NAMESPACES),
        _check(
            "identity",
            _unless(first.uid == _ids(record)[0].outside, f"runs as uid {first.uid}"),
            _identity(record, first.uid),
        ),
        *_devices(record),
    )


def _ids(record: Record) -> list[IdMap]:
    """Return the ids of its pid 1's namespace, in those of this one."""
    if record.slot is not None:
        return [IdMap(0, range_base(record.slot), ID_COUNT)]
    maps = namespaces.read_uid_map(record.pid)
    return [IdMap(ORDINARY_ID, os.getuid(), 1)] if len(maps) == 1 else maps  # one: it is 1000 a namespace further in


def _identity(record: Record, uid: int) -> str:
    if uid == os.getuid():
        return f"uid {uid} of the host, which is yours"
    whose = "nobody's" if record.slot is not None else "one of your subordinate ids"
    return f"uid {uid} of the host, which is {whose}"


def _devices(record: Record) -> tuple[Check, ...]:
    """Check the devices. Their ioctls are what an escape reaches beside the host's system calls."""
    if not record.devices:
        return ()
    names = ", ".join(f"/dev/{name}" for name in record.devices)
    return (_check("devices", None, f"the host's {names}, in a /dev of its own"),)


def _unless(holds: bool, problem: str) -> str | None:
    return None if holds else problem
