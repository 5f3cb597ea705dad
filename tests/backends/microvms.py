"""Virtual machines for tests: one state directory in which they are baked once."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager

import pytest

from paddock.backends import SandboxPlan
from paddock.backends.microvm import MicrovmBackend
from paddock.model import IdPrefix, Limits, SandboxId, SandboxSpec, mint, replace
from tests.backends.vmms import VmmHarness, furnished
from tests.conformance._box import Box
from tests.conftest import private_state

SECONDS = 300
SMALL = Limits(memory_mib=256, cpus=1.0, disk_mib=512, inodes=20_000)


class MicrovmHarness(VmmHarness):
    test_seconds = 600.0  # emulated, a program takes fifty times as long

    def backend(self) -> MicrovmBackend:  # pyright: ignore[reportIncompatibleMethodOverride]
        return MicrovmBackend(self.state_dir, supervisor=self.supervisor)

    async def plan(self, spec: SandboxSpec) -> SandboxPlan:
        """As small as what is asked for: each size is baked once."""
        asked = spec.limits
        limits = replace(
            asked, memory_mib=SMALL.memory_mib, cpus=SMALL.cpus, disk_mib=SMALL.disk_mib, inodes=SMALL.inodes
        )
        return await super().plan(replace(spec, limits=limits))


class Family:
    """Sandboxes of one backend; all are ended together."""

    def __init__(self, harness: MicrovmHarness) -> None:
        self.harness, self.backend = harness, harness.backend()
        self._boxes: list[Box] = []
        self._plans: list[SandboxPlan] = []

    async def begin(self) -> Box:
        return await self.create(await self.harness.plan(SandboxSpec(ttl_seconds=SECONDS)))

    async def fork(self, parent: Box) -> Box:
        plan = self.copy_plan(parent)
        async with parent.instance.frozen():
            self.harness.pool.snapshot(parent.plan.tree, plan.tree)
        return await self.create(plan)

    def copy_plan(self, parent: Box) -> SandboxPlan:
        id = SandboxId(mint(IdPrefix.SANDBOX))
        return replace(parent.plan, id=id, tree=id, hostname=id.replace("_", "-"))

    async def create(self, plan: SandboxPlan) -> Box:
        self._plans.append(plan)
        box = Box(await self.backend.create(plan), plan)
        self._boxes.append(box)
        return box

    async def end(self) -> None:
        for box in self._boxes:
            await box.let_go()
            await box.instance.kill()
            await box.instance.aclose()
        for plan in self._plans:
            await self.backend.forget(plan.id)
            await self.harness.cleanup(plan)
        await self.backend.aclose()


def play(harness: MicrovmHarness, test: Callable[[Family], Awaitable[None]]) -> None:
    async def whole() -> None:
        family = Family(harness)
        try:
            async with asyncio.timeout(SECONDS):
                await test(family)
        finally:
            await family.end()

    asyncio.run(whole())


@contextmanager
def microvm_harness() -> Generator[MicrovmHarness]:
    """Skips where there are no virtual machines."""
    # It lives as long as the session: descriptors that other tests open meanwhile are not its own.
    with private_state(ignore=("descriptors",)) as state_dir:
        reason = MicrovmBackend(state_dir).probe()
        if reason is not None:
            pytest.skip(f"no virtual machines here: {reason}")
        with furnished(state_dir) as (pool, templates):
            harness = MicrovmHarness(state_dir, pool, templates)
            bake(harness)
            yield harness


def bake(harness: MicrovmHarness) -> None:
    """Makes what the first machine would wait for: of a sandbox that lives for seconds nothing would be left."""

    async def live() -> None:
        plan, backend = await harness.plan(SandboxSpec(ttl_seconds=600)), harness.backend()
        try:
            instance = await backend.create(plan)
            await instance.kill()
            await instance.aclose()
        finally:
            await backend.aclose()
            await harness.cleanup(plan)

    asyncio.run(live())
