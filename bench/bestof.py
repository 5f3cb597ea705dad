"""Best of eight with a suite of two seconds, two at once, beside the ideal schedule: the suites alone, back to back."""

from __future__ import annotations

import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from bench.contest import Contender, contest
from bench.plan import Plan
from bench.report import Section
from bench.worker import TOTAL
from paddock import Mount, Sandbox
from paddock.agents import Checkout, Test, compare

ATTEMPTS, AT_ONCE = 8, 2
COMMAND = "pytest -q -p no:cacheprovider"
_SUITE = """
import time
import pytest
from task import answer

@pytest.mark.parametrize("n", range(4))
def test_it(n):
    clock = time.{clock}
    until = clock() + 0.4
    {during}
    while clock() < until: pass
    assert answer() == 42
"""
KINDS = {
    "computes": _SUITE.format(clock="process_time", during=""),
    "waits": _SUITE.format(clock="monotonic", during="time.sleep(0.4)"),
}
_PATCH = "--- a/task.py\n+++ b/task.py\n@@ -1,2 +1,2 @@\n def answer():\n-    return 0\n+    return 42 + 0 * {n}\n"


class _Warm:
    """A sandbox over a small project whose suite `kind` takes about two seconds, most of it as it says."""

    def __init__(self, kind: str) -> None:
        self.directory = tempfile.TemporaryDirectory(prefix="pb-", dir="/var/tmp")
        project = Path(self.directory.name)
        (project / "task.py").write_text("def answer():\n    return 0\n")
        (project / "test_task.py").write_text(KINDS[kind])
        self.sandbox = Sandbox.create("code-interpreter", ttl=900, mounts=[Mount(source=str(project))])
        self.sandbox.exec("pytest --version", check=True)

    def close(self) -> None:
        self.sandbox.kill()
        self.directory.cleanup()


class BestOf:
    def __init__(self, kind: str) -> None:
        self._warm = _Warm(kind)
        self._checkout = Checkout.of(self._warm.sandbox)

    def once(self) -> dict[str, float]:
        patches = {f"attempt {n}": _PATCH.format(n=n) for n in range(ATTEMPTS)}
        start = time.perf_counter()
        found = compare(self._checkout, patches, Test(COMMAND), parallel=AT_ONCE)
        total = time.perf_counter() - start
        assert all(attempt.passed for attempt in found.attempts), found
        return {TOTAL: total}

    def close(self) -> None:
        self._warm.close()


class Ideal:
    """The same suites in two sandboxes that are there and patched: nothing is forked, applied or killed."""

    def __init__(self, kind: str) -> None:
        self._warm = _Warm(kind)
        self._warm.sandbox.exec("echo 'def answer(): return 42' > task.py", check=True)
        self._sandboxes = self._warm.sandbox.fork(AT_ONCE)

    def once(self) -> dict[str, float]:
        start = time.perf_counter()
        with ThreadPoolExecutor(AT_ONCE) as pool:
            list(pool.map(self._suites, self._sandboxes))
        return {TOTAL: time.perf_counter() - start}

    def _suites(self, sandbox: Sandbox) -> None:
        for _ in range(ATTEMPTS // AT_ONCE):
            sandbox.exec(COMMAND, check=True)

    def close(self) -> None:
        for sandbox in self._sandboxes:
            sandbox.kill()
        self._warm.close()


def measure(plan: Plan) -> list[Section]:
    section = Section("bestof", "eight patches, each judged in a fork by a suite of 2 s, two at once; the suites alone")
    for kind in KINDS:
        contenders = [
            Contender(f"best of {ATTEMPTS}, the suite {kind}", "bench.bestof:BestOf", {"kind": kind}, state=True),
            Contender(f"the suites alone, it {kind}", "bench.bestof:Ideal", {"kind": kind}, state=True),
        ]
        best, ideal = contest(contenders, rounds=plan.rounds(3), block=1).values()
        for record in (best, ideal):
            section.add(record)
        section.compare(best, [ideal])
    return [section]
