"""1 GiB through a sandbox: stdout to the caller, a file out and a file in, beside `dd` into the same pool."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path
from typing import IO, cast

from bench.contest import Contender, Record, contest
from bench.figures import ratio
from bench.plan import Plan
from bench.report import Row, Section
from bench.worker import TOTAL
from paddock import Limits, Sandbox

BYTES = 1 << 30
CHUNK = 1 << 20
PARTS = ("stdout", "file out", "file in", "dd into the pool")
PADDOCK = Contender("paddock", "bench.streams:Streams", state=True)
REFERENCE = Contender("a pipe of the host", "bench.streams:Pipe")


def dd(target: str | None = None) -> list[str]:
    there = [] if target is None else [f"of={target}"]
    return ["dd", "if=/dev/zero", *there, f"bs={CHUNK}", f"count={BYTES // CHUNK}", "status=none"]


class Streams:
    """Nothing is forced to the disk on any side: what is measured is the way, not the device."""

    def __init__(self) -> None:
        self._sandbox = Sandbox.create(ttl=1800, limits=Limits(output_mib=4096, disk_mib=8192))
        self._files = self._sandbox.files
        assert self._sandbox.exec(dd("/workspace/out")).ok

    def once(self) -> dict[str, float]:
        forget_peak()
        before = memory("VmRSS")
        found: dict[str, float] = {}
        for part, act in zip(PARTS, (self._stdout, self._out, self._in, self._dd), strict=True):
            start = time.perf_counter()
            act()
            found[part] = time.perf_counter() - start
            self._files.remove("/workspace/in", missing_ok=True)
        return {TOTAL: sum(found.values()), **found, "growth": float(memory("VmHWM") - before)}

    def close(self) -> None:
        self._sandbox.kill()

    def _stdout(self) -> None:
        with self._sandbox.start(dd()) as process:
            total = 0
            while data := process.stdout.read(CHUNK):
                total += len(data)
            status = process.wait()
        assert (status.code, total) == (0, BYTES)

    def _out(self) -> None:
        with self._files.open("/workspace/out", "rb") as reader:
            total = 0
            while data := reader.read(CHUNK):
                total += len(data)
        assert total == BYTES

    def _in(self) -> None:
        piece = bytes(CHUNK)
        with self._files.open("/workspace/in", "wb") as writer:
            for _ in range(BYTES // CHUNK):
                writer.write(piece)

    def _dd(self) -> None:
        assert self._sandbox.exec(dd("/workspace/in")).ok


class Pipe:
    def once(self) -> dict[str, float]:
        start = time.perf_counter()
        with subprocess.Popen(dd(), stdout=subprocess.PIPE, bufsize=0) as process:
            total = 0
            while data := cast("IO[bytes]", process.stdout).read(CHUNK):
                total += len(data)
        assert (process.returncode, total) == (0, BYTES)
        return {TOTAL: time.perf_counter() - start}

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
    section = Section("streams", f"{BYTES >> 20} MiB through a sandbox", unit="MB/s")
    records = contest([PADDOCK, REFERENCE], rounds=plan.rounds(7), block=1)
    paddock, pipe = records[PADDOCK.name], records[REFERENCE.name]
    for record, parts in ((paddock, PARTS), (pipe, (TOTAL,))):
        if record.failure is not None:
            section.notes.append(f"{record.name}: {record.failure}")
            continue
        section.rows += [Row(record.name if part == TOTAL else part, rates(record, part)) for part in parts]
    if paddock.samples and pipe.samples:
        growth = [value / (1 << 20) for value in paddock.seconds("growth")]
        section.rows.append(Row("MiB more of the caller's memory, at its peak", growth, part=True))
        into = paddock.rounds("dd into the pool")
        section.ratios["dd into the pool / file in"] = ratio(into, paddock.rounds("file in"))
        section.ratios["a pipe of the host / stdout"] = ratio(pipe.rounds(), paddock.rounds("stdout"))
    section.notes.append("the ratios are of times: 0.8 is four fifths of the speed")
    return [section]


def rates(record: Record, part: str) -> list[float]:
    """Megabytes a second."""
    return [BYTES / value / 1e6 for value in record.seconds(part)]
