"""Where tests of containers run: a state directory with the template `host`, beside an engine of their own."""

from __future__ import annotations

import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from paddock.backends import SandboxPlan
from paddock.backends.container import ContainerBackend
from paddock.backends.jail import SupervisorClient
from paddock.model import IdPrefix, SandboxId, SandboxSpec, Template, mint
from paddock.storage import Pool, Templates
from tests.backends.vmms import furnished
from tests.conftest import private_state


class ContainerHarness:
    def __init__(self, state_dir: Path, pool: Pool, templates: Templates) -> None:
        self.state_dir, self.pool, self.templates = state_dir, pool, templates
        self.supervisor = SupervisorClient(state_dir)

    def backend(self) -> ContainerBackend:
        return ContainerBackend(self.state_dir, supervisor=self.supervisor)

    async def plan(self, spec: SandboxSpec, template: Template | None = None) -> SandboxPlan:
        id = SandboxId(mint(IdPrefix.SANDBOX))
        return SandboxPlan(
            id=id,
            hostname=id.replace("_", "-"),
            spec=spec,
            template=template or self.templates.get("host"),
            tree=id,
            deadline=time.clock_gettime(time.CLOCK_BOOTTIME) + spec.ttl_seconds,
        )

    async def cleanup(self, plan: SandboxPlan) -> None:
        pass


@contextmanager
def container_harness() -> Generator[ContainerHarness]:
    with private_state() as state_dir, furnished(state_dir) as (pool, templates):
        yield ContainerHarness(state_dir, pool, templates)
