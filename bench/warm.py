"""`exec("true")` in a sandbox that is there, beside `subprocess.run(["true"])`."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Sequence

from bench.contest import Contender, contest
from bench.plan import Plan
from bench.report import Section
from bench.worker import TOTAL
from paddock import Sandbox

PADDOCK = Contender("paddock, a line for the shell", "bench.warm:Exec", {"command": "true"}, state=True)
ARGV = Contender("paddock, a list", "bench.warm:Exec", {"command": ["true"]}, state=True)
REFERENCE = Contender("subprocess.run", "bench.warm:Subprocess")


class Exec:
    def __init__(self, command: str | Sequence[str], level: str | None = None) -> None:
        self._command = command
        self._sandbox = Sandbox.create(level=level, ttl=900)

    def once(self) -> dict[str, float]:
        start = time.perf_counter()
        result = self._sandbox.exec(self._command)
        end = time.perf_counter()
        assert result.ok, result
        return {TOTAL: end - start}

    def close(self) -> None:
        self._sandbox.kill()


class Subprocess:
    def once(self) -> dict[str, float]:
        start = time.perf_counter()
        subprocess.run(["true"], check=True, capture_output=True)
        return {TOTAL: time.perf_counter() - start}

    def close(self) -> None: ...


def measure(plan: Plan) -> list[Section]:
    section = Section("warm", 'exec("true") in a living sandbox')
    records = contest(
        [PADDOCK, ARGV, REFERENCE, *plan.peers("warm")], rounds=plan.rounds(8 if plan.with_peers else 20), block=20
    )
    first, *others = records.values()
    for record in records.values():
        section.add(record)
    section.add_cpu(first)
    section.compare(first, others)
    return [section]
