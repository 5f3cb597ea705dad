"""`paddock run -- true` as a shell sees it, and what of it is Python's start, imports, the service."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from bench.contest import Contender, contest
from bench.cycle import REFERENCE
from bench.plan import Plan
from bench.report import Section
from bench.worker import TOTAL

_PADDOCK = str(Path(sys.executable).parent / "paddock")


class Command:
    """A command from start to end; the supervisor is there already, as it is after the first."""

    def __init__(self, argv: Sequence[str]) -> None:
        self._argv = argv
        self.once()

    def once(self) -> dict[str, float]:
        start = time.perf_counter()
        done = subprocess.run(self._argv, stdin=subprocess.DEVNULL, capture_output=True, check=False)
        seconds = time.perf_counter() - start
        if done.returncode != 0:
            raise RuntimeError(f"{self._argv[0]}: {done.stderr.decode(errors='replace').strip()[-300:]}")
        return {TOTAL: seconds}

    def close(self) -> None: ...


def command(name: str, *argv: str, state: bool = False) -> Contender:
    return Contender(name, "bench.shell:Command", {"argv": argv}, state=state)


PADDOCK = command("paddock run -- true", _PADDOCK, "run", "--", "true", state=True)


def measure(plan: Plan) -> list[Section]:
    section = Section("shell", "a command of a sandbox, from the shell; every line does what those below it do")
    steps = (
        command("paddock ls (a service opens)", _PADDOCK, "ls", state=True),
        command("paddock --help (the command line)", _PADDOCK, "--help", state=True),
        command("python -c pass (this environment's)", sys.executable, "-c", "pass"),
    )
    contenders = [PADDOCK, *steps, REFERENCE]
    records = contest(contenders, rounds=plan.rounds(10), block=2)
    for record in records.values():
        section.add(record)
    section.add_cpu(records[PADDOCK.name])
    section.compare(records[PADDOCK.name], [records[c.name] for c in contenders[len(steps) + 1 :]])
    return [section]
