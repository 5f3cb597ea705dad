"""What work costs inside beside the same work outside: computing, system calls, processes, files.

Files are compared on the same file systems: that of the state directory, and the pool's own without a sandbox over it.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from bench.account import supervisor_pid
from bench.contest import Contender, contest
from bench.plan import Plan
from bench.report import Section
from bench.worker import TOTAL
from paddock import Sandbox

PYTHON = "/usr/bin/python3"  # the same inside and outside

_WORK = {
    "compute": """
import hashlib, json
for _ in range(3):
    sum(n * n % 7 for n in range(400_000))
    hashlib.sha256(bytes(20_000_000)).hexdigest()
    json.loads(json.dumps([{"n": n, "text": "x" * 20} for n in range(20_000)]))
""",
    "system calls": """
import os
for _ in range(100_000):
    os.stat("/")
""",
    "processes": """
import subprocess
for _ in range(100):
    subprocess.run(["/usr/bin/true"], check=True)
""",
    "files": """
import os
os.mkdir("tree")
for n in range(2_000):
    with open(f"tree/{n}", "wb") as file:
        file.write(b"x" * 4096)
for _ in range(3):
    for entry in os.scandir("tree"):
        entry.stat()
        with open(entry.path, "rb") as file:
            file.read()
for n in range(2_000):
    os.rename(f"tree/{n}", f"tree/{n}.moved")
for n in range(2_000):
    os.unlink(f"tree/{n}.moved")
os.rmdir("tree")
""",
}
_CLOCK = "import time; start = time.perf_counter()\n{}\nprint(time.perf_counter() - start)"


class Inside:
    def __init__(self, work: str) -> None:
        self._argv = _argv(work)
        self._sandbox = Sandbox.create(ttl=900)

    def once(self) -> dict[str, float]:
        result = self._sandbox.exec(self._argv, cwd="/workspace", check=True)
        return {TOTAL: float(result.stdout)}

    def close(self) -> None:
        self._sandbox.kill()


class Outside:
    """`on_pool`: in a directory of the pool, in the tree of a sandbox that does nothing else."""

    def __init__(self, work: str, on_pool: bool = False) -> None:
        self._argv = _argv(work)
        self._sandbox: Sandbox | None = None
        self._directory: tempfile.TemporaryDirectory[str] | None = None
        if not on_pool:
            self._directory = tempfile.TemporaryDirectory(prefix="pb-", dir="/var/tmp")
            self._place = Path(self._directory.name)
            return
        self._sandbox = Sandbox.create(ttl=900)
        state = Path(os.environ["PADDOCK_STATE_DIR"])
        # Only the supervisor has the pool mounted; root sees through its eyes.
        tree = Path(f"/proc/{supervisor_pid(state)}/root{state}/pool/{self._sandbox.id}")
        self._place = tree / "beside"
        self._place.mkdir()

    def once(self) -> dict[str, float]:
        done = subprocess.run(self._argv, cwd=self._place, check=True, capture_output=True, text=True)
        return {TOTAL: float(done.stdout)}

    def close(self) -> None:
        if self._sandbox is not None:
            self._sandbox.kill()
        if self._directory is not None:
            self._directory.cleanup()


def _argv(work: str) -> Sequence[str]:
    return [PYTHON, "-I", "-S", "-c", _CLOCK.format(_WORK[work])]


def measure(plan: Plan) -> list[Section]:
    return [_measure(plan, work) for work in _WORK]


def _measure(plan: Plan, work: str) -> Section:
    inside = Contender("inside", "bench.overhead:Inside", {"work": work}, state=True)
    outside = Contender("outside", "bench.overhead:Outside", {"work": work})
    contenders = [inside, outside]
    if work == "files" and os.geteuid() == 0:
        place = {"work": work, "on_pool": True}
        contenders.append(Contender("outside, on the pool", "bench.overhead:Outside", place, state=True))
    records = contest(contenders, rounds=plan.rounds(6), block=1)
    section = Section(work, f"{work}, inside and outside")
    for record in records.values():
        section.add(record)
    section.compare(records[inside.name], [records[c.name] for c in contenders[1:]])
    return section
