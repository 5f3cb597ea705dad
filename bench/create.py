"""Where the time of a create goes: medians of each step of keeper and child. `python bench/create.py [N]`."""

from __future__ import annotations

import asyncio
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

from paddock.backends import SandboxPlan
from paddock.backends.jail import JailBackend
from paddock.linux import proc
from paddock.model import ExecId, ExecSpec, Noun, SandboxId, SandboxSpec, mint
from paddock.storage import Templates, open_pool, prepare


async def main(count: int) -> None:
    rows: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory(prefix="paddock-bench-", dir="/var/tmp") as directory:
        state = Path(directory)
        config = prepare(state)
        backend = JailBackend(state)
        backend.trace = True
        pool = open_pool(state, config, os.dup(await backend.pool()))
        template = Templates(pool, state).get("host")
        print(f"driver {pool.driver}, {count} cycles")
        for _ in range(count):
            id = SandboxId(mint(Noun.SANDBOX))
            times = [time.perf_counter()]
            pool.create(id, layers=template.layers, limit_bytes=2 << 30)
            times.append(time.perf_counter())
            plan = SandboxPlan(
                id=id,
                hostname="bench",
                spec=SandboxSpec(),
                template=template,
                tree=id,
                deadline=proc.boottime() + 60,
            )
            instance = await backend.create(plan)
            times.append(time.perf_counter())
            for _ in range(2):
                handle = await instance.start(ExecSpec(argv=("true",)), id=ExecId(mint(Noun.EXEC)), background=False)
                status = await handle.wait()
                await handle.aclose()
                assert status.code == 0, status
                times.append(time.perf_counter())
            await instance.kill()
            times.append(time.perf_counter())
            pool.delete(id)
            times.append(time.perf_counter())
            names = ("tree", "create", "first exec", "warm exec", "kill", "delete")
            for name, start, end in zip(names, times, times[1:], strict=False):
                rows.setdefault(name, []).append(end - start)
            rows.setdefault("total", []).append(times[-1] - times[0] - (times[4] - times[3]))
            for name, seconds in backend.last_timings.items():
                rows.setdefault(f"  {name}", []).append(seconds)
        await backend.keeper.request("stop")
        await backend.aclose()
        pool.close()
    faults = {name: values for name, values in rows.items() if name.startswith("  faults.")}
    for name, values in rows.items():
        values.sort()
        if name not in faults:
            pages = faults.get(f"  faults.{name.strip()}", [])
            note = f"   after {statistics.median(pages):.0f} page faults" if pages else ""
            p50, p95 = (value * 1e3 for value in (statistics.median(values), values[int(len(values) * 0.95)]))
            print(f"{name:24} {p50:8.3f} {p95:8.3f} ms{note}")


asyncio.run(main(int(sys.argv[1]) if len(sys.argv) > 1 else 100))
