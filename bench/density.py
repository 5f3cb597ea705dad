"""How many sandboxes fit, and whether the last one is made as quickly as the first: `python -m bench.density`.

Sandboxes that do nothing are made until `--count` of them live. With 5 and with all of them alive, further ones are
made, used and killed: processor time of this program and of the supervisor, and wall time, of which ratios are to those
of `subprocess.run(["true"])` at the same time. As root: the memory of sandboxes is not an ordinary user's to look at.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from paddock import Sandbox
from paddock.supervisor import layout

FEW = 5
REFERENCE = "subprocess.run"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=500)
    parser.add_argument("--cycles", type=int, default=40, help="with few and with all of them alive")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="pb-", dir="/var/tmp") as directory:
        os.environ["PADDOCK_STATE_DIR"] = directory
        report = measure(Path(directory), arguments.count, arguments.cycles)
    if arguments.json:
        print(json.dumps(report, indent=1))
    else:
        for name, value in report.items():
            print(f"{name:58} {value:10.3f}")
    return 0


def measure(state: Path, count: int, cycles: int) -> dict[str, float]:
    crowd = [make() for _ in range(FEW)]
    try:
        supervisor = Supervisor(state)
        cycle_many(supervisor, cycles // 2)
        few = cycle_many(supervisor, cycles)
        free = available_mib()
        began = time.perf_counter()
        while len(crowd) < count:
            crowd.append(make())
        filling = time.perf_counter() - began
        used = (free - available_mib()) / (count - FEW)
        private = [private_mib(pid) for pid in supervisor.sandboxes()]
        descriptors = len(os.listdir(f"/proc/{supervisor.pid}/fd")) / count
        cycle_many(supervisor, cycles // 4)
        many = cycle_many(supervisor, cycles)
        report = {
            f"sandboxes alive ({len(private)} found)": float(count),
            "MiB of private memory of each, median": statistics.median(private),
            "MiB of private memory of each, most": max(private),
            "MiB less available to the machine for each": used,
            "MiB of private memory of the supervisor": private_of(supervisor.pid) / 1024,
            "descriptors of the supervisor for each": descriptors,
            "seconds for each while they were made": filling / (count - FEW),
        }
        for name in few:
            report[f"ms of {name}, {FEW} alive"] = few[name] * 1000
            report[f"ms of {name}, {count} alive"] = many[name] * 1000
            machine = 1.0 if "processor" in name else many[REFERENCE] / few[REFERENCE]
            report[f"ratio of {name}"] = many[name] / few[name] / machine
        return report
    finally:
        for sandbox in crowd:
            sandbox.kill()


def make() -> Sandbox:
    return Sandbox.create(ttl=3600, persistent=False)


def cycle_many(supervisor: Supervisor, cycles: int) -> dict[str, float]:
    """Medians of wall time, means of processor time."""
    walls: dict[str, list[float]] = {"create": [], "first exec": [], "kill": [], REFERENCE: []}
    own, kept = time.process_time(), supervisor.cpu_seconds()
    for _ in range(cycles):
        times = [time.perf_counter()]
        sandbox = make()
        times.append(time.perf_counter())
        assert sandbox.exec(["true"]).ok
        times.append(time.perf_counter())
        sandbox.kill()
        times.append(time.perf_counter())
        subprocess.run(["true"], check=True)
        times.append(time.perf_counter())
        for series, start, end in zip(walls.values(), times, times[1:], strict=False):
            series.append(end - start)
    return {
        **{name: statistics.median(series) for name, series in walls.items()},
        "processor time of a cycle, here": (time.process_time() - own) / cycles,
        "processor time of a cycle, supervisor": (supervisor.cpu_seconds() - kept) / cycles,
    }


class Supervisor:
    def __init__(self, state: Path) -> None:
        inode = (state / layout.SUPERVISOR_LOCK).stat().st_ino
        rows = (line.split() for line in Path("/proc/locks").read_text().splitlines() if "->" not in line)
        (self.pid,) = {int(row[4]) for row in rows if row[5].rpartition(":")[2] == str(inode)} - {-1, 0}

    def cpu_seconds(self) -> float:
        return int(Path(f"/proc/{self.pid}/schedstat").read_text().split()[0]) / 1e9

    def sandboxes(self) -> list[int]:
        """Their first processes, the spare's too."""
        return children(self.pid)


def children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def private_mib(pid: int) -> float:
    """Of a process and all below it."""
    pids = [pid]
    for parent in pids:
        pids += children(parent)
    return sum(private_of(pid) for pid in pids) / 1024


def private_of(pid: int) -> int:
    """KiB that nobody shares (proc_pid_smaps(5))."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("Private_"))


def available_mib() -> float:
    lines = Path("/proc/meminfo").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("MemAvailable")) / 1024


if __name__ == "__main__":
    sys.exit(main())
