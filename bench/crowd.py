"""How many cycles a second one program gets out of this machine, with 1, 4 and 16 callers at once; and how long a
hundred creates take that come together."""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Protocol

from bench.contest import Contender, Record, contest
from bench.cycle import Cycle
from bench.plan import Plan
from bench.reference import Reference
from bench.report import Row, Section
from bench.worker import TOTAL
from paddock import Sandbox

CALLERS = (1, 4, 16)
CYCLES = 32
BURST = 100
PADDOCK = Contender("paddock", "bench.crowd:Crowd", state=True)
REFERENCE = Contender("bwrap", "bench.crowd:ReferenceCrowd")


class Life(Protocol):
    def once(self) -> dict[str, float]: ...


class Crowd:
    """Threads that each live through cycles. One repetition is CYCLES of them; the time is that of one."""

    def __init__(self, callers: int) -> None:
        self._lives = self._make(callers)
        self._threads = ThreadPoolExecutor(callers)

    def _make(self, callers: int) -> Sequence[Life]:
        return [Cycle()] * callers  # it holds nothing

    def once(self) -> dict[str, float]:
        start = time.perf_counter()
        taken = list(chain.from_iterable(self._threads.map(self._live, self._lives)))
        wall = time.perf_counter() - start
        creates = [parts.get("create", 0.0) for parts in taken]
        return {
            TOTAL: wall / CYCLES,
            "latency": statistics.median(parts[TOTAL] for parts in taken),
            "create": statistics.median(creates),
            "slowest create": max(creates),
        }

    def _live(self, life: Life) -> list[dict[str, float]]:
        return [life.once() for _ in range(CYCLES // len(self._lives))]

    def close(self) -> None:
        self._threads.shutdown()


class Burst:
    """A hundred callers that each want a sandbox and the end of a first command, at the same moment."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(BURST)
        Cycle()

    def once(self) -> dict[str, float]:
        start = time.perf_counter()
        boxes = list(self._threads.map(self._begin, range(BURST)))
        wall = time.perf_counter() - start
        list(self._threads.map(Sandbox.kill, boxes))
        return {TOTAL: wall}

    def _begin(self, _: int) -> Sandbox:
        sandbox = Sandbox.create(ttl=60)
        sandbox.exec(["true"], check=True)
        return sandbox

    def close(self) -> None:
        self._threads.shutdown()


class ReferenceCrowd(Crowd):
    def _make(self, callers: int) -> Sequence[Life]:
        self._directory = tempfile.TemporaryDirectory(prefix="pb-", dir="/var/tmp")
        places = [Path(self._directory.name, str(n)) for n in range(callers)]
        return [_ReferenceLife(place) for place in places]

    def close(self) -> None:
        super().close()
        with suppress(OSError):
            self._directory.cleanup()


class _ReferenceLife:
    def __init__(self, place: Path) -> None:
        place.mkdir()
        self._reference = Reference(place)

    def once(self) -> dict[str, float]:
        start = time.perf_counter()
        self._reference.cycle()
        return {TOTAL: time.perf_counter() - start}


def measure(plan: Plan) -> list[Section]:
    section = Section(
        "crowd", f"cycles a second, by number of callers (threads of one program, {os.cpu_count()} cores)"
    )
    section.unit = "1/s"
    contenders = [
        replace(side, name=f"{side.name}, {n} caller{'s' * (n > 1)}", arguments={"callers": n})
        for side in (PADDOCK, REFERENCE)
        for n in CALLERS
    ]
    records = contest(contenders, rounds=plan.rounds(5), block=1)
    for record in records.values():
        _add(section, record)
    ours, theirs = (list(records.values())[n : n + len(CALLERS)] for n in (0, len(CALLERS)))
    for one, other in zip(ours, theirs, strict=True):
        section.compare(one, [other])
    section.notes.append("ratios are of the time per cycle")
    burst = Section("burst", f"{BURST} creates at one moment, until each has run `true`")
    for record in contest(
        [Contender("paddock", "bench.crowd:Burst", state=True)], rounds=plan.rounds(5), block=1
    ).values():
        burst.add(record)
        burst.add_cpu(record)
    return [section, burst]


def _add(section: Section, record: Record) -> None:
    if record.failure is not None:
        section.notes.append(f"{record.name}: {record.failure}")
        return
    section.rows.append(Row(record.name, [1 / value for value in record.seconds()]))
    section.rows.append(Row("ms until each has its answer", [1e3 * v for v in record.seconds("latency")], part=True))
    if any(record.seconds("create")):
        section.rows.append(Row("ms of a create, median", [1e3 * v for v in record.seconds("create")], part=True))
        section.rows.append(
            Row(f"ms of the slowest create of {CYCLES}", [1e3 * v for v in record.seconds("slowest create")], part=True)
        )
    cpu = [1e3 * value / CYCLES for value in chain.from_iterable(record.cpu_rounds())]
    section.rows.append(Row("ms of processor time per cycle", cpu, part=True))
