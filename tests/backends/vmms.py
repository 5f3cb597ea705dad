"""A third VMM, for tests: the guest in the same jail, with no further wall."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest

from paddock.backends import SandboxPlan
from paddock.backends.jail import JailBackend, SupervisorClient
from paddock.backends.vmm import GUEST, Orders, VmmBackend, VmmInstance
from paddock.linux import proc
from paddock.model import IdPrefix, Level, SandboxId, SandboxSpec, mint
from paddock.storage import Pool, Templates, open_pool, prepare
from paddock.supervisor.plan import JailPlan
from paddock.wire.guest import PartFlags as Part
from paddock.wire.guest import Renew
from tests import pools
from tests.conformance import _host
from tests.conftest import private_state
from tests.vmm.plain import in_kits


class PlainVmm(VmmBackend):
    name = "plain"
    level = Level.GVISOR
    extra_memory_mib = extra_processes = 0
    argv: tuple[str, ...] = ()
    """Another program in place of the guest, for those that misbehave."""
    greeting_seconds = 60.0

    async def build_plan(self, plan: SandboxPlan, jail: JailPlan) -> JailPlan:
        return jail._replace(trees=(*jail.trees, await self.guest()))

    async def orders(self, plan: SandboxPlan, jail: JailPlan) -> Orders:
        called = f"import os; os.execv({GUEST!r}, ['/{plan.id}/sentry'])"  # `processes` finds it by that
        options = {"argv": self.argv or ("/usr/bin/python3", "-I", "-S", "-c", called)}
        env = self.own_environment(plan)
        return Orders(driver="plain", options=options, env=env, greeting_seconds=self.greeting_seconds)

    async def ready(self, plan: SandboxPlan, instance: VmmInstance) -> None:
        # The supervisor has set the host name.
        await instance.tell(Renew(parts=Part.HOSTS, hosts=plan.hostname.encode()))


class VmmHarness:
    """One state directory with a pool and the template `host`."""

    def __init__(self, state_dir: Path, pool: Pool, templates: Templates) -> None:
        self.state_dir, self.pool, self.templates = state_dir, pool, templates
        self.supervisor = SupervisorClient(state_dir)

    def backend(self) -> VmmBackend:
        return PlainVmm(self.state_dir, supervisor=self.supervisor)

    async def plan(self, spec: SandboxSpec) -> SandboxPlan:
        template = self.templates.get("host")
        id = SandboxId(mint(IdPrefix.SANDBOX))
        self.pool.create(id, layers=template.layers, limit_bytes=spec.limits.disk_mib << 20)
        deadline = time.clock_gettime(time.CLOCK_BOOTTIME) + spec.ttl_seconds
        return SandboxPlan(
            id=id, hostname=id.replace("_", "-"), spec=spec, template=template, tree=id, deadline=deadline
        )

    async def cleanup(self, plan: SandboxPlan) -> None:
        self.pool.delete(plan.tree)


def processes(id: str) -> dict[str, int]:
    """Host process ids of the controller and of the guest's pid 1, which is its child, and has the id in its name."""
    for pid in _host.processes(id):
        parent = proc.parent(pid)
        if b"paddock.vmm.controller" in Path(f"/proc/{parent}/cmdline").read_bytes():
            return {"controller": parent, "child": pid}
    raise AssertionError(f"no controller of {id} lives")


@contextmanager
def vmms(*, for_tests: bool = False) -> Generator[VmmHarness]:
    """Skips where there is no jail."""
    with (
        private_state() as state_dir,
        in_kits(state_dir),
        furnished(state_dir, for_tests=for_tests) as (pool, templates),
    ):
        reason = PlainVmm(state_dir).probe()
        if reason is not None:
            pytest.skip(f"no jail here: {reason}")
        yield VmmHarness(state_dir, pool, templates)


@contextmanager
def furnished(state_dir: Path, *, for_tests: bool = False) -> Generator[tuple[Pool, Templates]]:
    """What a harness needs of a state directory in which there was nothing."""
    config = prepare(state_dir)
    pool = open_pool(state_dir, config, pool_of(state_dir, for_tests=for_tests))
    try:
        yield pool, Templates(pool)
    finally:
        pool.close()


def pool_of(state_dir: Path, *, for_tests: bool = False) -> int:
    async def opened() -> int:
        backend = JailBackend(state_dir, for_tests=for_tests)
        try:
            return os.dup(await pools.descriptor(backend))
        finally:
            await backend.aclose()

    return asyncio.run(opened())
