"""The least that the kernel charges for a sandbox: `floor.c` makes only the system calls of one life.

It has the jail's namespaces, control groups, mounts, masks, two processes and filter, and nothing else: no Python, no
daemon, no record, no posture check. What it takes is a bound for any program that gives a sandbox these walls. Each of
its parts is left out in turn: the difference is what that part costs.
"""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import tempfile
import time
from contextlib import ExitStack, suppress
from pathlib import Path

from bench.account import kernel_seconds
from bench.contest import Contender, Record, contest
from bench.cycle import PADDOCK, REFERENCE
from bench.plan import Plan
from bench.reference import minimal_root
from bench.report import Section
from bench.worker import TOTAL
from paddock.linux import cgroups, masks, seccomp_profile

PARTS = ("groups", "network", "mounts", "masks", "agent", "seccomp")
KERNEL = "kernel"
PROCESSOR = "processor time"
MEANS = (("time", TOTAL), (PROCESSOR, PROCESSOR), ("threads of the kernel", KERNEL))
MEMORY = Path("/dev/shm")
_LIMITS = {"memory": "536870912", "memory.swap": "1073741824", "pids": "512", "cpu": "100000"}


class Floor:
    """The program. `without` names the parts that it leaves out."""

    def __init__(self, without: list[str]) -> None:
        with ExitStack() as closing:
            top = Path(tempfile.mkdtemp(prefix="pb-", dir=MEMORY if os.access(MEMORY, os.W_OK) else "/var/tmp"))
            closing.callback(shutil.rmtree, top, ignore_errors=True)
            program = top / "floor"
            compiler = shutil.which("cc") or "gcc"
            subprocess.run(
                [compiler, "-O2", "-std=c11", "-o", program, Path(__file__).with_name("floor.c")], check=True
            )
            self._base = cgroups.Base.open(f"paddock_floor_{os.getpid()}")
            closing.callback(_remove, self._base)
            lay_out(top, self._base)
            self._process = subprocess.Popen(
                [program, str(top), *without], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0
            )
            closing.callback(self._process.wait)
            assert self._process.stdin is not None
            closing.callback(self._process.stdin.close)
            self.once()
            self._closing = closing.pop_all()

    def once(self) -> dict[str, float]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        before = self._processor_seconds()
        self._process.stdin.write(b"1")
        said = self._process.stdout.readline()
        if not said:
            raise RuntimeError(f"floor ended with {self._process.wait()}")
        found = {TOTAL: int(said) * 1e-9}
        after = self._processor_seconds()
        return found if before is None or after is None else found | {PROCESSOR: after - before}

    def _processor_seconds(self) -> float | None:
        """Of the program and of all that it starts, from their common control group."""
        tree, name = self._base.find("cpuacct")
        if tree is None:
            return None
        words = Path(tree.path, name).read_bytes().split()
        return int(words[0]) * 1e-9 if len(words) == 1 else int(words[words.index(b"usage_usec") + 1]) * 1e-6

    def close(self) -> None:
        self._closing.close()


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
        for name in ("program", "sandbox"):  # the second is there only after a failure
            with suppress(FileNotFoundError):
                os.rmdir(f"{tree.path}/{name}")
    base.remove()


def measure(plan: Plan) -> list[Section]:
    section = Section("floor", "the system calls of one life, beside bubblewrap and paddock, back to back")
    if os.geteuid() != 0:
        section.notes.append("root alone has the control groups and the mounts that are compared here")
        return [section]
    whole = Contender("system calls alone", "bench.floor:Floor", {"without": []})
    lesser = [Contender(f"without {part}", "bench.floor:Floor", {"without": [part]}) for part in PARTS]
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
    return [section, parts]


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
