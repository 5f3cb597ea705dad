"""create + first exec + destroy, back to back and at ten a second, beside bubblewrap over a private overlay.

Back to back each side pays for all that it starts, also for what it makes ahead. At ten a second, what a caller of
paddock sees is what is left when there was time to make a spare.
"""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path

from bench.contest import Contender, contest
from bench.plan import Plan
from bench.reference import Reference
from bench.report import Section
from bench.worker import TOTAL
from paddock import Sandbox

PADDOCK = Contender("paddock", "bench.cycle:Cycle", state=True)
REFERENCE = Contender("overlay + bwrap" if os.geteuid() == 0 else "bwrap", "bench.cycle:ReferenceCycle")


class Cycle:
    """A sandbox's whole life, in process, as its caller sees it."""

    def __init__(self) -> None:
        self.once()  # the pool, the supervisor, the template

    def once(self) -> dict[str, float]:
        start = time.perf_counter()
        sandbox = self.create()
        created = time.perf_counter()
        try:
            result = sandbox.exec(["true"])
            executed = time.perf_counter()
        finally:
            sandbox.kill()
        killed = time.perf_counter()
        assert result.ok, result
        return {
            TOTAL: killed - start,
            "create": created - start,
            "first exec": executed - created,
            "destroy": killed - executed,
        }

    def create(self) -> Sandbox:
        return Sandbox.create(ttl=60)

    def close(self) -> None: ...


class ReferenceCycle:
    """The same isolation without limits, ids, seccomp or audit: the least that can be asked of bubblewrap."""

    def __init__(self) -> None:
        self._directory = tempfile.TemporaryDirectory(prefix="pb-", dir="/var/tmp")
        self._reference = Reference(Path(self._directory.name))

    def once(self) -> dict[str, float]:
        start = time.perf_counter()
        self._reference.cycle()
        return {TOTAL: time.perf_counter() - start}

    def close(self) -> None:
        self._directory.cleanup()


def measure(plan: Plan) -> list[Section]:
    found: list[Section] = []
    for name, title, rounds, interval in (
        ("cycle", "create + exec true + destroy, back to back", 10 if plan.with_peers else 20, None),
        ("paced", "the same, ten a second", 8, 0.1),
    ):
        contenders = [PADDOCK, REFERENCE, *(plan.peers("cycle") if interval is None else ())]
        records = contest(contenders, rounds=plan.rounds(rounds), block=10, interval=interval)
        section = Section(name, title)
        for record in records.values():
            section.add(record)
        for record in (records[PADDOCK.name], records[REFERENCE.name]):
            section.add_cpu(record)
        section.compare(records[PADDOCK.name], [records[c.name] for c in contenders[1:]])
        found.append(section)
    return found
