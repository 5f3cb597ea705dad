"""What the door costs by itself: no sandbox is made, the backend answers at once.

    python -m bench.door [rounds]

Prints medians and 95th percentiles in microseconds. Quote ratios, not figures: the machine is shared.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, cast

from paddock.audit import AuditLog
from paddock.backends.base import SandboxPlan
from paddock.daemon.main.service import Service
from paddock.daemon.store.database import Row, Store
from paddock.model import (
    CreateSandbox,
    Decision,
    ExecId,
    ExecSpec,
    ExitStatus,
    GetSandbox,
    KillSandbox,
    ListSandboxes,
    PtySize,
    RunExec,
    SandboxId,
    SandboxSpec,
    State,
    replace,
)
from paddock.policy import local_policy
from paddock.storage import Pool
from tests.service.service_world import ME, FolderPool, Held, OneTemplate, Place, Rig, WorldBackend


class NoPool(FolderPool):
    """Trees that cost nothing."""

    def create(
        self, name: str, *, layers: tuple[str, ...] = (), limit_bytes: int | None = None, mounts: int = 0
    ) -> None: ...
    def delete(self, name: str) -> None: ...


class NoReader:
    async def read(self, size: int = 65536) -> bytes:
        return b""

    async def aclose(self) -> None: ...


class NoCommand:
    """Ended before it began."""

    pid, stdin = 1, None

    def __init__(self, id: ExecId) -> None:
        self.id, self.stdout, self.stderr = id, NoReader(), NoReader()

    async def wait(self) -> ExitStatus:
        return ExitStatus(code=0)

    async def signal(self, number: int) -> None: ...
    async def kill(self) -> None: ...
    async def resize(self, size: PtySize) -> None: ...
    async def aclose(self) -> None: ...


class NoInstance(Held):
    async def start(self, spec: ExecSpec, *, id: ExecId, background: bool) -> NoCommand:  # pyright: ignore
        return NoCommand(id)


class NoBackend(WorldBackend):
    """Sandboxes that cost nothing."""

    async def create(self, plan: SandboxPlan) -> Held:
        place = self._world.places[plan.id] = Place(plan, self._world.root)
        return NoInstance(place)

    async def forget(self, id: SandboxId) -> None:
        self._world.places.pop(id, None)


def show(name: str, seconds: list[float]) -> None:
    seconds.sort()
    p50, p95 = (seconds[int(len(seconds) * q)] * 1e6 for q in (0.5, 0.95))
    print(f"{name:<58}{p50:>9.1f}{p95:>9.1f}")


def timed(rounds: int, call: Callable[[], object]) -> list[float]:
    taken: list[float] = []
    for _ in range(rounds):
        start = time.perf_counter()
        call()
        taken.append(time.perf_counter() - start)
    return taken


async def atimed(rounds: int, call: Callable[[], Awaitable[object]]) -> list[float]:
    taken: list[float] = []
    for _ in range(rounds):
        start = time.perf_counter()
        await call()
        taken.append(time.perf_counter() - start)
    return taken


def parts(directory: Path, rounds: int) -> None:
    policy, action = local_policy(os.getuid()), CreateSandbox()
    show("policy.decide", timed(rounds, lambda: policy.decide(ME, action)))
    log = AuditLog(directory / "audit")
    yes = Decision(allowed=True, reason="a bench", rule="bench")
    show("audit: one decision", timed(rounds, lambda: log.decision(ME, action, yes)))
    show("audit: one outcome", timed(rounds, lambda: log.outcome(1, "sandbox.create", ok=True)))
    log.close()


async def door(directory: Path, rounds: int) -> None:
    rig = Rig(directory / "state")
    pool = cast("Pool", NoPool(directory / "pool"))
    service = Service(
        rig.state_dir,
        backends=[NoBackend(rig.world)],
        pool=lambda: pool,
        templates=cast("Any", OneTemplate),
        policy=local_policy(os.getuid()),
    )
    show("perform: list, nothing there", await atimed(rounds, lambda: service.perform(ListSandboxes(), ME)))
    made = await service.perform(CreateSandbox(), ME)
    show("perform: get", await atimed(rounds, lambda: service.perform(GetSandbox(sandbox=made.id), ME)))
    run = RunExec(sandbox=made.id, spec=ExecSpec(argv=("true",)))
    show("perform: run, all but the command", await atimed(rounds, lambda: service.perform(run, ME)))
    creates: list[float] = []
    kills: list[float] = []
    for _ in range(rounds // 4):
        start = time.perf_counter()
        sandbox = await service.perform(CreateSandbox(), ME)
        middle = time.perf_counter()
        await service.perform(KillSandbox(sandbox=sandbox.id), ME)
        creates.append(middle - start)
        kills.append(time.perf_counter() - middle)
    show("perform: create, all but tree and backend", creates)
    show("perform: kill, all but tree and backend", kills)
    store_parts(service.store, made.id, rounds)  # pyright: ignore[reportPrivateUsage]
    await service.aclose()


def store_parts(store: Store, id: str, rounds: int) -> None:
    row = store.get(id)
    assert row is not None
    numbers = iter(range(10**9))

    def add() -> None:
        n = next(numbers)
        sandbox = replace(row.sandbox, id=SandboxId(f"sb_{n}"), spec=SandboxSpec())
        store.add(Row(sandbox, 1.0, "b"))

    show("store: insert a sandbox", timed(rounds, add))
    show("store: read one", timed(rounds, lambda: store.get(id)))
    states = itertools.cycle((State.PAUSED, State.RUNNING))
    show("store: move a state", timed(rounds, lambda: store.move(row, next(states))))


def imports(rounds: int) -> None:
    for module in ("asyncio, msgspec", "paddock.daemon.main.service"):
        command = [sys.executable, "-c", f"import {module}"]
        show(f"a process that imports {module}", timed(rounds, lambda: subprocess.run(command, check=True)))  # noqa: B023


def main() -> None:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 2000
    print(f"{'µs':<58}{'p50':>9}{'p95':>9}")
    with tempfile.TemporaryDirectory() as directory:
        parts(Path(directory), rounds)
        asyncio.run(door(Path(directory), rounds))
    imports(10)


if __name__ == "__main__":
    main()
