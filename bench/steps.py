"""Where the time of a create goes: each step of storage, supervisor and child."""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections import defaultdict
from itertools import pairwise
from pathlib import Path

from bench.contest import stop_supervisor
from bench.plan import Plan
from bench.report import Row, Section
from paddock.backends import SandboxPlan
from paddock.backends.jail import JailBackend
from paddock.linux import proc
from paddock.model import ExecId, ExecSpec, IdPrefix, SandboxId, SandboxSpec, Template, mint
from paddock.storage import Pool, Templates

LIFE = ("tree", "create", "first exec", "warm exec", "kill", "delete")
Times = dict[str, list[float]]


def measure(plan: Plan) -> list[Section]:
    with tempfile.TemporaryDirectory(prefix="pb-", dir="/var/tmp") as directory:
        state = Path(directory)
        try:
            life, steps = asyncio.run(_measure(state, plan.rounds(100)))
        finally:
            stop_supervisor(state)
    whole = Section("steps", "a sandbox's life below the service: storage, supervisor, guest")
    whole.rows = [Row(name, [1e3 * value for value in life[name]]) for name in LIFE]
    inner = Section("create", "the steps of create (inside.*: in the sandbox; spare.*: ahead, before a caller waits)")
    for name, seconds in steps.items():
        inner.rows.append(Row(name, [1e3 * value for value in seconds]))
    return [whole, inner]


async def _measure(state: Path, count: int) -> tuple[Times, Times]:
    life: Times = defaultdict(list)
    steps: Times = defaultdict(list)
    backend = JailBackend(state)
    backend.trace = True
    pool = await backend.trees()
    try:
        template = Templates(pool).get("host")
        for _ in range(count):
            marks = await _live(backend, pool, template)
            for name, (start, end) in zip(LIFE, pairwise(marks), strict=True):
                life[name].append(end - start)
            for name, value in backend.last_timings.items():
                steps[name].append(value)
    finally:
        await backend.aclose()
    return life, steps


async def _live(backend: JailBackend, pool: Pool, template: Template) -> list[float]:
    id = SandboxId(mint(IdPrefix.SANDBOX))
    marks = [time.perf_counter()]
    pool.create(id, layers=template.layers, limit_bytes=2 << 30)
    marks.append(time.perf_counter())
    plan = SandboxPlan(
        id=id, hostname="bench", spec=SandboxSpec(), template=template, tree=id, deadline=proc.boottime() + 60
    )
    instance = await backend.create(plan)
    marks.append(time.perf_counter())
    for _ in range(2):
        handle = await instance.start(ExecSpec(argv=("true",)), id=ExecId(mint(IdPrefix.EXEC)), background=False)
        status = await handle.wait()
        await handle.aclose()
        assert status.code == 0, status
        marks.append(time.perf_counter())
    await instance.kill()
    marks.append(time.perf_counter())
    pool.delete(id)
    marks.append(time.perf_counter())
    return marks
