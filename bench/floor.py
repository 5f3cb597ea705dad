"""The least that the kernel charges for a sandbox: `floor.c` makes only the system calls of one life.

It has the jail's namespaces, control groups, mounts, masks, two processes and filter, and nothing else: no Python, no
daemon, no record, no posture check. What it takes is a bound for any program that gives a sandbox these walls. Each of
its parts is left out in turn: the difference is what that part costs.
"""

from __future__ import annotations

import itertools
import os
import shutil
import statistics
import subprocess
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path

from bench import crowd, warm
from bench.account import kernel_seconds
from bench.contest import Contender, Record, contest
from bench.crowd import BURST, CYCLES
from bench.cycle import PADDOCK, REFERENCE
from bench.density import available_mib
from bench.plan import Plan
from bench.reference import minimal_root
from bench.report import Row, Section
from bench.worker import TOTAL
from paddock.linux import cgroups, masks, seccomp_profile

LIFE = b"+c-"
PARTS = ("groups", "network", "mounts", "masks", "agent", "seccomp")
KERNEL = "kernel"
PROCESSOR = "processor time"
MEANS = (("time", TOTAL), (PROCESSOR, PROCESSOR), ("threads of the kernel", KERNEL))
CALLERS = 4
IDLE = 300
IDLE_ROUNDS = 5
MEMORY = Path("/dev/shm")
_LIMITS = {"memory": "536870912", "memory.swap": "1073741824", "pids": "512", "cpu": "100000"}


class Program:
    """`floor.c` as a process. `without` names the parts that it leaves out."""

    _numbers = itertools.count()

    def __init__(self, without: Sequence[str] = ()) -> None:
        with ExitStack() as closing:
            top = Path(tempfile.mkdtemp(prefix="pb-", dir=MEMORY if os.access(MEMORY, os.W_OK) else "/var/tmp"))
            closing.callback(shutil.rmtree, top, ignore_errors=True)
            program = top / "floor"
            compiler = shutil.which("cc") or "gcc"
            subprocess.run(
                [compiler, "-O2", "-std=c11", "-o", program, Path(__file__).with_name("floor.c")], check=True
            )
            self._base = cgroups.Base.open(f"paddock_floor_{os.getpid()}_{next(self._numbers)}")
            closing.callback(_remove, self._base)
            lay_out(top, self._base)
            self._process = subprocess.Popen(
                [program, str(top), *without], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0
            )
            closing.callback(self._process.wait)
            assert self._process.stdin is not None
            closing.callback(self._process.stdin.close)
            self.do(LIFE)
            self._closing = closing.pop_all()

    def do(self, steps: bytes) -> list[float]:
        """Do the steps one after the other, at most a few thousand, and return the seconds of each."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(steps)
        said = [self._process.stdout.readline() for _ in steps]
        if not all(said):
            raise RuntimeError(f"floor ended with {self._process.wait()}")
        return [int(line) * 1e-9 for line in said]

    def processor_seconds(self) -> float | None:
        """Of the program and of all that it starts, from their common control group."""
        tree, name = self._base.find("cpuacct")
        if tree is None:
            return None
        words = Path(tree.path, name).read_bytes().split()
        return int(words[0]) * 1e-9 if len(words) == 1 else int(words[words.index(b"usage_usec") + 1]) * 1e-6

    def close(self) -> None:
        self._closing.close()


class Life:
    """A create, a command and a destroy."""

    def __init__(self, without: list[str]) -> None:
        self._program = Program(without)

    def once(self) -> dict[str, float]:
        before = self._program.processor_seconds()
        create, command, destroy = self._program.do(LIFE)
        after = self._program.processor_seconds()
        found = {TOTAL: create + command + destroy, "create": create, "first exec": command, "destroy": destroy}
        return found if before is None or after is None else found | {PROCESSOR: after - before}

    def close(self) -> None:
        self._program.close()


class Command:
    """A command in a sandbox that is there."""

    def __init__(self) -> None:
        self._program = Program()
        self._program.do(b"+")

    def once(self) -> dict[str, float]:
        return {TOTAL: self._program.do(b"c")[0]}

    def close(self) -> None:
        self._program.close()


class Crowd:
    """Programs side by side. One repetition is CYCLES lives; the time is that of one."""

    def __init__(self, callers: int) -> None:
        self._programs = [Program() for _ in range(callers)]
        self._threads = ThreadPoolExecutor(callers)

    def _all(self, steps: bytes) -> float:
        start = time.perf_counter()
        list(self._threads.map(Program.do, self._programs, [steps] * len(self._programs)))
        return time.perf_counter() - start

    def once(self) -> dict[str, float]:
        return {TOTAL: self._all(LIFE * (CYCLES // len(self._programs))) / CYCLES}

    def close(self) -> None:
        self._threads.shutdown()
        for program in self._programs:
            program.close()


class Burst(Crowd):
    """Sandboxes that are all wanted at one moment, each until the end of its first command."""

    def once(self) -> dict[str, float]:
        each = BURST // len(self._programs)
        taken = self._all(b"+c" * each)
        self._all(b"-" * each)
        return {TOTAL: taken}


def lay_out(top: Path, base: cgroups.Base) -> None:
    """Make the directory that `floor.c` reads and makes its root directory."""
    top.chmod(0o755)
    (minimal_root(top / "rootfs") / "tmp").mkdir()
    for name in ("proc", "dev", "mnt", "nothing", "devices/pts", "devices/shm"):
        (top / name).mkdir(parents=True)
    (top / "empty").touch()
    (top / "masks").write_text("".join(f"{name}\n" for name in masks.there(of_root=False)))
    (top / "filter").write_bytes(seccomp_profile.build(os.uname().machine, foreign_targets=True))
    with (top / "trees").open("w") as file:
        for tree in base.trees:
            os.mkdir(f"{tree.path}/program")
            file.write(f"{tree.path}\n")
            for limit, value in _LIMITS.items():
                if base.find(limit)[0] is tree and base.find(limit)[1]:
                    file.write(f"set {base.find(limit)[1]} {value}\n")


def _remove(base: cgroups.Base) -> None:
    for tree in base.trees:
        for group in (entry for entry in os.scandir(tree.path) if entry.is_dir()):
            with suppress(FileNotFoundError):  # sandboxes are left only after a failure
                os.rmdir(group)
    base.remove()


def measure(plan: Plan) -> list[Section]:
    section = Section("floor", "the system calls of one life, beside bubblewrap and paddock, back to back")
    if os.geteuid() != 0:
        section.notes.append("root alone has the control groups and the mounts that are compared here")
        return [section]
    whole = Contender("system calls alone", "bench.floor:Life", {"without": []})
    lesser = [Contender(f"without {part}", "bench.floor:Life", {"without": [part]}) for part in PARTS]
    idle = _kernel_rate()
    records = contest([PADDOCK, REFERENCE, whole, *lesser], rounds=plan.rounds(20), block=20)
    for contender in (PADDOCK, REFERENCE, whole):
        section.add(records[contender.name])
        if contender is not whole:  # it says itself what it has used
            section.add_cpu(records[contender.name])
        section.add_kernel(records[contender.name])
    section.compare(records[PADDOCK.name], [records[REFERENCE.name], records[whole.name]])
    section.compare(records[whole.name], [records[REFERENCE.name]])
    parts = Section("floor-parts", "the same without one part of the system calls")
    for contender, part in zip(lesser, PARTS, strict=True):
        record = records[contender.name]
        parts.add(record)
        parts.add_kernel(record)
        if record.samples:
            less = ", ".join(
                f"{name} {_median(records[whole.name], of) - _median(record, of):.2f}" for name, of in MEANS
            )
            parts.notes.append(f"{part}, in ms by medians: {less}")
    section.notes.append(f"the machine's kernel threads took {1e3 * idle:.1f} ms of a second before this")
    return [section, parts, _many(plan), _warm(plan), _idle()]


def _many(plan: Plan) -> Section:
    section = Section("floor-many", f"the same of {CALLERS} callers at once, and {BURST} sandboxes at one moment")
    alone = "system calls alone"
    lives = [
        replace(side, name=f"{side.name}, {CALLERS} callers", arguments={"callers": CALLERS})
        for side in (Contender(alone, "bench.floor:Crowd"), crowd.PADDOCK, crowd.REFERENCE)
    ]
    bursts = [
        Contender(f"{alone}, {BURST} at once", "bench.floor:Burst", {"callers": CALLERS}),
        Contender(f"paddock, {BURST} at once", "bench.crowd:Burst", state=True),
    ]
    for contenders in (lives, bursts):
        records = list(contest(contenders, rounds=plan.rounds(5), block=1).values())
        for record in records:
            section.add(record, parts=False)
        section.compare(records[-1], records[:1])
        section.compare(records[0], records[1:])
    return section


def _warm(plan: Plan) -> Section:
    section = Section("floor-warm", "a command in a sandbox that is there")
    contenders = [Contender("system calls alone", "bench.floor:Command"), warm.ARGV, warm.REFERENCE]
    records = list(contest(contenders, rounds=plan.rounds(10), block=40).values())
    for record in records:
        section.add(record)
    section.compare(records[0], records[1:])
    return section


def _idle() -> Section:
    section = Section("floor-idle", f"memory that the machine lacks for each of {IDLE} sandboxes which do nothing")
    section.unit = "MiB"
    program = Program()
    try:
        found: list[float] = []
        for _ in range(IDLE_ROUNDS):
            free = available_mib()
            program.do(b"+" * IDLE)
            found.append((free - available_mib()) / IDLE)
            program.do(b"-" * IDLE)
    finally:
        program.close()
    section.rows.append(Row("system calls alone", found))
    return section


def _median(record: Record, of: str) -> float:
    """Milliseconds; of the kernel's threads by round."""
    if of == KERNEL:
        return 1e3 * statistics.median(
            used / len(block) for used, block in zip(record.kernel, record.samples, strict=True)
        )
    return 1e3 * statistics.median(record.seconds(of)) if of in record.parts else 0.0


def _kernel_rate() -> float:
    before, start = kernel_seconds(), time.perf_counter()
    time.sleep(1)
    return (kernel_seconds() - before) / (time.perf_counter() - start)
