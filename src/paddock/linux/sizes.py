"""Files that tell a sandbox its limits in the words of the kernel's own (proc(5), sysfs(5)), and where it is to run."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence

from paddock.linux import kernel_files, proc
from paddock.linux.cgroups import ShownHierarchy

_PERIOD = 100_000  # microseconds, as the kernel's default
LOADAVG = "0.00 0.00 0.00 1/1 1\n"
"""Always no load: the kernel's value is the machine's."""
_KIB = 1 << 10
_UNLIMITED = (1 << 63) - os.sysconf("SC_PAGE_SIZE")
_CPU = "sys/devices/system/cpu/"
_LOOPBACK = "sys/devices/virtual/net/lo/"
_LO = {"address": "00:00:00:00:00:00", "carrier": 1, "flags": "0x9", "ifindex": 1, "mtu": 65536, "type": 772}
_DIRECTORIES = ("sys/class/net", "sys/class/power_supply", "sys/fs/cgroup")  # psutil lists the second in every /sys
_UNTOLD = ("Buffers", "Cached", "SwapCached", "Active", "Inactive", "Dirty", "Shmem", "Slab", "SReclaimable")


class Processors:
    """Gives each sandbox as many as it may use, in turn, so that they lie side by side."""

    def __init__(self) -> None:
        self._next = 0

    def choose(self, cpus: float) -> tuple[tuple[int, ...], bool]:
        """Return their numbers, and whether they are all that the caller itself has."""
        available = sorted(os.sched_getaffinity(0))
        count = min(max(1, math.ceil(cpus)), len(available))
        if count == len(available):
            return tuple(available), True
        first = self._next % len(available)
        self._next = first + count
        return tuple(sorted((available * 2)[first : first + count])), False


def possible() -> str:
    """Return the possible numbers of this machine's processors: arrays by number have that length."""
    try:
        return kernel_files.read("/sys/devices/system/cpu/possible").decode()
    except FileNotFoundError:
        return f"0-{(os.cpu_count() or 1) - 1}\n"


def meminfo(memory: int, swap: int) -> str:
    """Return a meminfo with the whole limit unused, up to the machine's size. That is exact only at the start."""
    machine = proc.meminfo()
    total, swap = min(memory, machine["MemTotal"]) // _KIB, min(swap, machine["SwapTotal"]) // _KIB
    rows = {"MemTotal": total, "MemFree": total, "MemAvailable": total, **dict.fromkeys(_UNTOLD, 0)}
    rows |= {"SwapTotal": swap, "SwapFree": swap}
    return "".join(f"{name + ':':<16}{value:>8} kB\n" for name, value in rows.items())


def stat(cpus: Sequence[int]) -> str:
    """Say processors, no times of theirs, and the boot, from which programs count when a process began."""
    times = " 0" * 10
    rows = [f"cpu {times}", *(f"cpu{number}{times}" for number in cpus), "intr 1", "ctxt 1"]
    rows += [f"btime {round(time.time() - proc.boottime())}", "processes 0", "procs_running 1", "procs_blocked 0"]
    return "\n".join((*rows, f"softirq{' 0' * 11}", ""))


def cpuinfo(cpus: Sequence[int]) -> str:
    """Return these of the machine's processors, or all if the kernel doesn't number them."""
    whole = kernel_files.read("/proc/cpuinfo").decode()
    return "".join(f"{block}\n\n" for block in _blocks(whole, cpus).values()) or whole


def _blocks(cpuinfo: str, cpus: Sequence[int]) -> dict[int, str]:
    blocks = {block.split("\n", 1)[0].rpartition(":")[2].strip(): block for block in cpuinfo.split("\n\n")}
    return {number: blocks[str(number)].rstrip() for number in cpus if str(number) in blocks}


def system(cpus: Sequence[int], may_be: str) -> dict[str, str]:
    """Files of /sys."""
    return {
        f"{_CPU}online": listed(cpus),
        f"{_CPU}possible": may_be,
        f"{_CPU}present": may_be,
        **{_LOOPBACK + name: f"{value}\n" for name, value in _LO.items()},
        **topology(kernel_files.read("/proc/cpuinfo").decode(), cpus),
    }


def topology(cpuinfo: str, cpus: Sequence[int]) -> dict[str, str]:
    """Return which of the processors share a core and a socket, by which libraries choose threads.

    It is empty on arm64.
    """
    found: dict[int, tuple[str, str]] = {}
    for number, block in _blocks(cpuinfo, cpus).items():
        rows = {name.strip(): value.strip() for name, _, value in (row.partition(":") for row in block.splitlines())}
        if "core id" in rows and "physical id" in rows:
            found[number] = rows["physical id"], rows["core id"]
    files: dict[str, str] = {}
    for number, (socket, core) in found.items():
        place = f"{_CPU}cpu{number}/topology/"
        files |= {f"{place}core_id": f"{core}\n", f"{place}physical_package_id": f"{socket}\n"}
        together = {"thread": [n for n in found if found[n] == (socket, core)]}
        together["core"] = [n for n in found if found[n][0] == socket]
        for name, numbers in together.items():
            files[f"{place}{name}_siblings"] = f"{sum(1 << n for n in numbers):x}\n"
            files[f"{place}{name}_siblings_list"] = listed(numbers)
    return files


def proc_files(memory: int, swap: int, cpus: Sequence[int], *, all_of_them: bool) -> dict[str, str]:
    """Return files of /proc by their names. If a sandbox has all processors, the kernel's own list is right."""
    files = {"meminfo": meminfo(memory, swap), "stat": stat(cpus)}
    return files if all_of_them else files | {"cpuinfo": cpuinfo(cpus)}


def lay(root: str, files: Mapping[str, str], may_be: str, more: Iterable[str] = ()) -> None:
    """Write `files` below the directory `root`, with the other files of a small /sys, and the directories `more`."""
    strict = os.umask(0o022)
    try:
        for file, text in files.items():
            os.makedirs(os.path.dirname(f"{root}/{file}"), exist_ok=True)
            with open(f"{root}/{file}", "w") as made:
                made.write(text)
        for name in (*_DIRECTORIES, *(f"{_CPU}cpu{number}" for number in numbers(may_be)), *more):
            os.makedirs(f"{root}/{name}", exist_ok=True)
        os.symlink("../../devices/virtual/net/lo", f"{root}/sys/class/net/lo")
    finally:
        os.umask(strict)


def group(
    shown: ShownHierarchy, *, memory: int, swap: int, cpus: float, pids: int, runs_on: Sequence[int]
) -> dict[str, str]:
    """Return the files of a simulated control group, for limits with other means."""
    quota = round(cpus * _PERIOD)
    if shown.version == 2:
        return {
            "cgroup.controllers": "cpuset cpu memory pids\n",
            "cpu.max": f"{quota} {_PERIOD}\n",
            "cpuset.cpus.effective": listed(runs_on),
            "memory.high": "max\n",
            "memory.max": f"{memory}\n",
            "memory.swap.max": f"{swap}\n",
            "pids.max": f"{pids}\n",
        }
    files = {
        "cpu": {"cpu.cfs_period_us": _PERIOD, "cpu.cfs_quota_us": quota},
        "cpuset": {"cpuset.cpus": listed(runs_on).strip(), "cpuset.mems": 0},
        "memory": {
            "memory.limit_in_bytes": memory,
            "memory.memsw.limit_in_bytes": memory + swap,
            "memory.soft_limit_in_bytes": _UNLIMITED,  # Node ignores the limit without it
        },
    }
    found = (files[controller] for controller in sorted(shown.controllers & files.keys()))
    return {name: f"{value}\n" for part in found for name, value in part.items()}


def numbers(listed: str) -> Iterator[int]:
    """Yield the processors of such a list."""
    for part in listed.strip().split(","):
        first, _, last = part.partition("-")
        yield from range(int(first), int(last or first) + 1)


def listed(cpus: Sequence[int]) -> str:
    """List processors like the kernel: `0-3,8`."""
    ranges: list[list[int]] = []
    for number in cpus:
        if ranges and number == ranges[-1][1] + 1:
            ranges[-1][1] = number
        else:
            ranges.append([number, number])
    return ",".join(f"{first}" if first == last else f"{first}-{last}" for first, last in ranges) + "\n"
