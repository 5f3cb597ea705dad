"""Fork, snapshot and rollback of a running sandbox, with few files and with many: on btrfs the size must not matter.
And a hundred children at once.
"""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

from bench.contest import Contender, contest
from bench.plan import Plan
from bench.report import Section
from bench.worker import TOTAL
from paddock import Sandbox

FEW, MANY = 100, 20_000
CHILDREN, CALLERS = 100, 8
_FILL = "import os,sys\nfor i in range(int(sys.argv[1])): open(f'd/{i}', 'w').write(str(i))\nos.sync()"


class Fork:
    """A child, until its first command has ended; then its parent's snapshot, and the way back to it."""

    def __init__(self, files: int) -> None:
        self._parent = Sandbox.create(ttl_seconds=900)
        self._parent.exec("mkdir d", check=True)
        self._parent.exec(["python3", "-c", _FILL, str(files)], check=True)

    def once(self) -> dict[str, float]:
        marks = [time.perf_counter()]
        child = self._parent.fork()
        child.exec("true", check=True)
        marks.append(time.perf_counter())
        child.kill()
        start = time.perf_counter()
        snapshot = self._parent.snapshot()
        taken = time.perf_counter()
        self._parent.rollback(snapshot)
        back = time.perf_counter()
        self._parent.delete_snapshot(snapshot)
        return {TOTAL: marks[1] - marks[0], "snapshot": taken - start, "rollback": back - taken}

    def close(self) -> None:
        self._parent.kill()


class Children:
    """A hundred at once, until each has run a command."""

    def __init__(self) -> None:
        self._parent = Sandbox.create(ttl_seconds=900)
        self._parent.exec("echo warm > file", check=True)
        self._callers = ThreadPoolExecutor(CALLERS)

    def once(self) -> dict[str, float]:
        start = time.perf_counter()
        children = self._parent.fork(CHILDREN)
        born = time.perf_counter()
        list(self._callers.map(_command, children))
        done = time.perf_counter()
        list(self._callers.map(Sandbox.kill, children))
        return {TOTAL: done - start, "fork": born - start, "commands": done - born}

    def close(self) -> None:
        self._parent.kill()
        self._callers.shutdown()


def _command(child: Sandbox) -> None:
    child.exec("cat file", check=True)


def measure(plan: Plan) -> list[Section]:
    contenders = [
        Contender(f"{files} files: fork + exec true", "bench.fork:Fork", {"files": files}, state=True)
        for files in (MANY, FEW)
    ]
    section = Section("fork", "a running sandbox: a child until its first command has ended, snapshot, rollback")
    records = contest(contenders, rounds=plan.rounds(5), block=10)
    many, few = records.values()
    for record in records.values():
        section.add(record)
        section.add_cpu(record)
    section.compare(many, [few])
    children = Section("children", f"{CHILDREN} children of one sandbox, until each has run a command")
    (record,) = contest(
        [Contender(f"fork({CHILDREN}), a command in each", "bench.fork:Children", state=True)],
        rounds=plan.rounds(3),
        block=2,
    ).values()
    children.add(record)
    children.add_cpu(record)
    return [section, children]
