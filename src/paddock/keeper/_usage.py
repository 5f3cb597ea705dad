"""What one sandbox has used until now, as its control group, its tree and the watch tell."""

from __future__ import annotations

import os
from typing import Any

from paddock.keeper._house import House
from paddock.keeper._undertaker import Life
from paddock.keeper._watch import Seen
from paddock.linux import btrfs

Message = dict[str, Any]


def usage_of(house: House, life: Life, seen: Seen | None) -> Message:
    usage: Message = {} if seen is None else _usage_seen(seen)
    if life.jail.group is not None:
        stats = life.jail.group.stats()
        counted = {
            "memory_bytes": stats.memory_bytes,
            "memory_peak_bytes": stats.memory_peak_bytes,
            "processes": stats.processes,
            "cpu_seconds": stats.cpu_seconds,
        }
        strikes = {"memory": stats.oom_kills, "processes": stats.processes_refused}
        usage |= {name: value for name, value in counted.items() if value is not None}
        usage["strikes"] = usage.get("strikes", {}) | {name: n for name, n in strikes.items() if n is not None}
    try:
        tree = os.open(life.record.tree, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=house.pool)
    except OSError:
        return usage
    try:
        if btrfs.is_btrfs(tree):
            usage["disk_bytes"] = btrfs.quota(tree, btrfs.subvolume_id(tree)).used_bytes
    except OSError:
        pass
    finally:
        os.close(tree)
    return usage


def _usage_seen(seen: Seen) -> Message:
    usage: Message = {"strikes": dict(seen.strikes)}
    if seen.processes:
        usage |= {
            "memory_bytes": seen.memory_bytes,
            "memory_peak_bytes": seen.memory_peak_bytes,
            "processes": seen.processes,
        }
    return usage if seen.disk_bytes is None else usage | {"disk_bytes": seen.disk_bytes}
