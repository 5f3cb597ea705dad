"""A file of 1 GiB into a sandbox and out of it again, beside a copy of it on the same file system."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from bench.contest import Contender, contest
from bench.plan import Plan
from bench.report import Section
from bench.stream import add_rates, forget_peak, memory
from bench.worker import TOTAL
from paddock import Limits, Sandbox

BYTES = 1 << 30
DIRECTIONS = ("in", "out")


class Transfer:
    """Nothing is forced to the disk: what is measured is the way, not the device."""

    def __init__(self, direction: str) -> None:
        self._directory = tempfile.TemporaryDirectory(prefix="pb-", dir="/var/tmp")
        self._here = Path(self._directory.name)
        self._source, self._target = self._here / "source", self._here / "target"
        with self._source.open("wb") as file:
            piece = bytes(range(256)) * 4096
            for _ in range(BYTES // len(piece)):
                file.write(piece)
        self._act = self._prepare(direction)

    def _prepare(self, direction: str) -> Callable[[], object]:
        self._sandbox = Sandbox.create(ttl_seconds=900, limits=Limits(disk_mib=4096))
        files = self._sandbox.filesystem
        if direction == "in":
            return lambda: files.write_from("/workspace/big", self._source)
        files.write_from("/workspace/big", self._source)
        return lambda: files.read_to("/workspace/big", self._target)

    def once(self) -> dict[str, float]:
        forget_peak()
        before = memory("VmRSS")
        start = time.perf_counter()
        self._act()
        seconds = time.perf_counter() - start
        growth = memory("VmHWM") - before
        self._target.unlink(missing_ok=True)
        return {TOTAL: seconds, "growth": float(growth)}

    def close(self) -> None:
        self._sandbox.kill()
        self._directory.cleanup()


class Copy(Transfer):
    """Read and write, as it would be without a sandbox between."""

    def _prepare(self, direction: str) -> Callable[[], object]:
        def copy() -> None:
            with self._source.open("rb") as source, self._target.open("wb") as target:
                shutil.copyfileobj(source, target, 1 << 20)

        return copy

    def close(self) -> None:
        self._directory.cleanup()


def measure(plan: Plan) -> list[Section]:
    contenders = [
        Contender("in (write_from)", "bench.transfer:Transfer", {"direction": "in"}, state=True),
        Contender("out (read_to)", "bench.transfer:Transfer", {"direction": "out"}, state=True),
        Contender("a copy on the host", "bench.transfer:Copy", {"direction": "in"}),
    ]
    section = Section("transfer", f"a file of {BYTES >> 20} MiB", unit="MB/s")
    records = contest(contenders, rounds=plan.rounds(3), block=1)
    for record in records.values():
        add_rates(section, record, BYTES)
    into, out, copy = records.values()
    section.compare(into, [copy])
    section.compare(out, [copy])
    section.notes.append("the ratios are of times; nothing is forced to the disk on either side")
    return [section]
