"""What forks of a virtual machine cost: `python -m bench.machines` (as root: their memory is not an ordinary user's).

One machine of 256 MiB, in which a command has run. Its children of one moment, idle: the share of guest memory of each
(PSS of QEMU's mapping of it), and of all, beside that of one machine alone. Then single forks: how long the parent
stands still (the longest silence of a program in it that speaks all the time), until the child has run a command (of
it, how long QEMU took from the order to load its state until it ran), and the same of a fork of that fork.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from bench.density import Supervisor
from paddock import Sandbox
from paddock.backends.microvm import MicrovmBackend
from paddock.backends.vmm._control import Reply
from paddock.linux import processes
from paddock.model import Limits, SandboxId

_MEMORY = "/vm/ram"
_TICKS = "import time\nwhile True: print('.', end='', flush=True); time.sleep(0.002)"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--children", type=int, default=10)
    parser.add_argument("--forks", type=int, default=10)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="pb-", dir="/var/tmp") as directory:
        os.environ["PADDOCK_STATE_DIR"] = directory
        report = measure(Path(directory), arguments.children, arguments.forks)
    report["load"] = os.getloadavg()[0]
    if arguments.json:
        print(json.dumps(report, indent=1))
    else:
        for name, value in report.items():
            print(f"{name:58} {value:10.2f}")
    return 0


def measure(state: Path, children: int, forks: int) -> dict[str, float]:
    limits = Limits(memory_mib=256, disk_mib=512)
    with Sandbox.create(level="microvm", limits=limits, ttl=3600) as machine:
        machine.exec(["true"], check=True)
        supervisor = Supervisor(state)
        (one,) = shares(supervisor).values()
        siblings = machine.fork(children)
        try:
            all_of_them = shares(supervisor)
            own = list(all_of_them.values())[1:]  # by age
        finally:
            for sibling in siblings:
                sibling.kill()
        report = {
            "MiB of guest memory, one machine": one,
            f"MiB of guest memory, each of {children} children": statistics.median(own),
            "ratio of all children to one machine": sum(own) / one,
        }
        for name, values in single(state, machine, forks).items():
            report[f"ms {name}, median"] = statistics.median(values) * 1000
            report[f"ms {name}, least"] = min(values) * 1000
        return report


def single(state: Path, machine: Sandbox, forks: int) -> dict[str, list[float]]:
    walls: dict[str, list[float]] = {
        name: [] for name in ("parent stands still", "child has answered", "of it, restore", "its child has")
    }
    for _ in range(forks):
        with silences(machine) as longest:
            child, seconds = answered(machine)
        walls["parent stands still"].append(longest[0])
        walls["child has answered"].append(seconds)
        walls["of it, restore"].append(asyncio.run(restored(state, child)))
        try:
            grandchild, seconds = answered(child)
            grandchild.kill()
        finally:
            child.kill()
        walls["its child has"].append(seconds)
    return walls


def answered(machine: Sandbox) -> tuple[Sandbox, float]:
    start = time.perf_counter()
    child = machine.fork()
    child.exec(["true"], check=True)
    return child, time.perf_counter() - start


async def restored(state: Path, machine: Sandbox) -> float:
    """From QEMU's order to load its state until it ran: its controller has taken the time."""
    backend = MicrovmBackend(state)
    try:
        instance = await backend.adopt(SandboxId(machine.id))
        assert instance is not None
        answer = await (await instance.control()).call("ping", _Figures)
        await instance.aclose()
    finally:
        await backend.aclose()
    return answer.figures["restore"]


class _Figures(Reply, frozen=True):
    figures: dict[str, float]


@contextmanager
def silences(machine: Sandbox) -> Generator[list[float]]:
    """The longest while in which it said nothing."""
    longest = [0.0]
    speaker = machine.start(["python3", "-I", "-S", "-c", _TICKS])
    speaks = threading.Event()

    def listen() -> None:
        assert speaker.stdout is not None
        last = 0.0
        for _ in speaker.stdout:
            now = time.perf_counter()
            if last:
                longest[0] = max(longest[0], now - last)
            last = now
            speaks.set()

    listener = threading.Thread(target=listen)
    listener.start()
    try:
        speaks.wait()
        longest[0] = 0.0
        yield longest
    finally:
        speaker.kill()
        listener.join()


def shares(supervisor: Supervisor) -> dict[int, float]:
    """MiB of guest memory of each machine, by the pid of its QEMU."""
    found = {
        one.pid for first in supervisor.sandboxes() for one in processes.below(first) if one.name.startswith(b"qemu")
    }
    return {pid: share(pid) for pid in sorted(found)}


def share(pid: int) -> float:
    kib, within = 0, False
    for line in Path(f"/proc/{pid}/smaps").read_text().splitlines():
        name, *rest = line.split()
        if not name.endswith(":"):
            within = rest[-1:] == [_MEMORY]
        elif within and name == "Pss:":
            kib += int(rest[0])
    return kib / 1024


if __name__ == "__main__":
    sys.exit(main())
