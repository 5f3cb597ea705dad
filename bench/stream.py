"""1 GiB of stdout to a caller that reads all of it, beside the same through a plain pipe; and what memory that took."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path
from typing import IO, cast

from bench.contest import Contender, Record, contest
from bench.plan import Plan
from bench.report import Row, Section
from bench.worker import TOTAL
from paddock import Limits, Sandbox

BYTES = 1 << 30
CHUNK = 1 << 20
ARGV = ("head", "-c", str(BYTES), "/dev/zero")
PADDOCK = Contender("paddock", "bench.stream:Stdout", state=True)
REFERENCE = Contender("a pipe of the host", "bench.stream:Pipe")


class Stdout:
    def __init__(self) -> None:
        self._sandbox = Sandbox.create(ttl_seconds=900, limits=Limits(output_mib=4096))

    def once(self) -> dict[str, float]:
        forget_peak()
        before = memory("VmRSS")
        start = time.perf_counter()
        with self._sandbox.start(ARGV) as process:
            total = 0
            while data := process.stdout.read(CHUNK):
                total += len(data)
            status = process.wait()
        seconds = time.perf_counter() - start
        assert (status.code, total) == (0, BYTES)
        return {TOTAL: seconds, "growth": float(memory("VmHWM") - before)}

    def close(self) -> None:
        self._sandbox.kill()


class Pipe:
    def once(self) -> dict[str, float]:
        forget_peak()
        before = memory("VmRSS")
        start = time.perf_counter()
        with subprocess.Popen(ARGV, stdout=subprocess.PIPE, bufsize=0) as process:
            total = 0
            while data := cast("IO[bytes]", process.stdout).read(CHUNK):
                total += len(data)
        seconds = time.perf_counter() - start
        assert (process.returncode, total) == (0, BYTES)
        return {TOTAL: seconds, "growth": float(memory("VmHWM") - before)}

    def close(self) -> None: ...


def forget_peak() -> None:
    """proc(5), clear_refs: 5 sets the peak of the resident set to what it is now."""
    Path("/proc/self/clear_refs").write_text("5")


def memory(key: str) -> int:
    """Bytes: VmRSS, VmHWM (its peak)."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{key}:"):
            return int(line.split()[1]) << 10
    raise KeyError(key)


def measure(plan: Plan) -> list[Section]:
    section = Section("stream", f"{BYTES >> 20} MiB of stdout, read by the caller", unit="MB/s")
    records = contest([PADDOCK, REFERENCE], rounds=plan.rounds(5), block=1)
    for record in records.values():
        add_rates(section, record, BYTES)
    section.compare(records[PADDOCK.name], [records[REFERENCE.name]])
    section.notes.append("the ratio is of times")
    return [section]


def add_rates(section: Section, record: Record, size: int) -> None:
    """Megabytes a second, and by how much the caller's memory grew at its peak."""
    if record.failure is not None:
        section.notes.append(f"{record.name}: {record.failure}")
        return
    section.rows.append(Row(record.name, [size / value / 1e6 for value in record.seconds()]))
    growth = [value / (1 << 20) for value in record.seconds("growth")]
    section.rows.append(Row("MiB more of the caller's memory, at its peak", growth, part=True))
    for part in ("", *record.cpu[0]):
        cpu = [1e3 * value for block in record.cpu_rounds(*filter(None, [part])) for value in block]
        if any(cpu):
            section.rows.append(Row(f"ms of processor time{part and ', ' + part}", cpu, part=True))
