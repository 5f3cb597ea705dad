"""Fork, snapshot and rollback of a running sandbox: on btrfs its size must not matter.

Of four parents: with few files, with many, over a workspace, and with half a GiB that no disk has seen yet. A ticker
inside says for how long its parent stood still. And a hundred children at once.
"""

from __future__ import annotations

import os
import time
from concurrent.futures import ThreadPoolExecutor

from bench.contest import POOL_DRIVER, Contender, contest
from bench.plan import Plan
from bench.report import Section
from bench.worker import TOTAL
from paddock import Sandbox, Workspace
from paddock.client import Process

FEW, MANY = 100, 20_000
DIRTY_MIB = 512
CHILDREN, CALLERS = 100, 8
_FILL = "import os,sys\nfor i in range(int(sys.argv[1])): open(f'd/{i}', 'w').write(str(i))\nos.sync()"
# Quickly, so that the kernel has written as little of it as may be when the fork comes; a new file, since btrfs writes
# one that was cut short out as soon as it is closed.
_WRITE = """
import os, sys
if os.path.exists("big"):
    os.remove("big")
piece = os.urandom(1 << 20)
with open("big", "wb") as file:
    for _ in range(int(sys.argv[1])):
        file.write(piece)
"""
# For each line that it reads it says the longest time in which it did not run, since the last one, in seconds.
_TICKER = """
import select, sys, time
longest, last = 0.0, time.monotonic()
while True:
    asked = select.select([0], [], [], 0.001)[0]
    now = time.monotonic()
    longest, last = max(longest, now - last), now
    if asked:
        if not sys.stdin.buffer.raw.read(1):
            break
        print(longest, flush=True)
        longest = 0.0
"""


class Fork:
    """A child, until its first command has ended; then its parent's snapshot, and the way back to it."""

    def __init__(self, files: int, workspace: bool = False, dirty_mib: int = 0) -> None:
        self._dirty_mib = dirty_mib
        name = Workspace.open("bench").name if workspace else None
        self._parent = Sandbox.create(ttl=900, workspace=name)
        self._place = "/workspace" if workspace else None
        self._run("mkdir", "d")
        self._run("python3", "-c", _FILL, str(files))

    def _run(self, *argv: str) -> None:
        self._parent.exec(argv, cwd=self._place, check=True)

    def once(self) -> dict[str, float]:
        with self._parent.start(["python3", "-c", _TICKER], stdin=True) as ticker:
            if self._dirty_mib:
                self._run("python3", "-c", _WRITE, str(self._dirty_mib))
            self._longest(ticker)
            start = time.perf_counter()
            child = self._parent.fork()
            child.exec(["true"], check=True)
            forked = time.perf_counter() - start
            stood = self._longest(ticker)
            child.kill()
        start = time.perf_counter()
        snapshot = self._parent.snapshot()
        taken = time.perf_counter()
        self._parent.rollback(snapshot)
        back = time.perf_counter()
        self._parent.delete_snapshot(snapshot)
        return {TOTAL: forked, "the parent stood": stood, "snapshot": taken - start, "rollback": back - taken}

    def _longest(self, ticker: Process) -> float:
        ticker.stdin.write(b"?")
        line = b""
        while not line.endswith(b"\n"):
            line += ticker.stdout.read(64)
        return float(line)

    def close(self) -> None:
        self._parent.kill()


class Children:
    """A hundred at once, until each has run a command."""

    def __init__(self) -> None:
        self._parent = Sandbox.create(ttl=900)
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
    # Where copies cost what was written, twenty thousand files are some seconds each time.
    whole = os.environ.get(POOL_DRIVER, "btrfs") != "btrfs"
    few = _parent(f"{FEW} files", files=FEW)
    others = (
        _parent(f"{MANY // 10 if whole else MANY} files", files=MANY // 10 if whole else MANY),
        _parent(f"{FEW} files in a workspace", files=FEW, workspace=True),
        _parent(f"{DIRTY_MIB} MiB just written", block=1, files=FEW, dirty_mib=DIRTY_MIB),
    )
    section = Section("fork", "a running sandbox: a child until its first command has ended, snapshot, rollback")
    records = contest([few, *others], rounds=plan.rounds(5), block=2 if whole else 10)
    for record in records.values():
        section.add(record)
        section.add_cpu(record)
    for other in others:
        section.compare(records[other.name], [records[few.name]])
    section.notes.append("stood: the longest time in which a process that sleeps for a millisecond was not seen to run")
    children = Section("children", f"{CHILDREN} children of one sandbox, until each has run a command")
    (record,) = contest(
        [Contender(f"fork({CHILDREN}), a command in each", "bench.fork:Children", state=True)],
        rounds=plan.rounds(3),
        block=2,
    ).values()
    children.add(record)
    children.add_cpu(record)
    return [section, children]


def _parent(what: str, *, block: int | None = None, **arguments: object) -> Contender:
    return Contender(f"{what}: fork + exec true", "bench.fork:Fork", arguments, state=True, block=block)
