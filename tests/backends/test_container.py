"""A container keeps every promise of a backend."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Generator
from pathlib import Path

import pytest

from paddock.backends import SandboxPlan
from paddock.backends.container import ContainerBackend
from paddock.backends.jail import JailBackend
from paddock.model import Noun, SandboxId, SandboxSpec, mint
from paddock.storage import Templates, open_pool, prepare
from paddock.testing.conformance import (
    AdoptionConformance,
    BackendConformance,
    LifeConformance,
    LimitConformance,
)
from tests.backends.engines import PodmanService, podman_service
from tests.conftest import private_state


class ContainerHarness:
    def __init__(self, state_dir: Path, templates: Templates) -> None:
        self.state_dir, self.templates = state_dir, templates

    def backend(self) -> ContainerBackend:
        return ContainerBackend(self.state_dir)

    async def plan(self, spec: SandboxSpec) -> SandboxPlan:
        id = SandboxId(mint(Noun.SANDBOX))
        deadline = time.clock_gettime(time.CLOCK_BOOTTIME) + spec.ttl_seconds
        template = self.templates.get("host")
        return SandboxPlan(
            id=id, hostname=id.replace("_", "-"), spec=spec, template=template, tree=id, deadline=deadline
        )

    async def cleanup(self, plan: SandboxPlan) -> None:
        pass


@pytest.fixture(scope="module")
def engine() -> Generator[PodmanService]:
    with podman_service() as service, pytest.MonkeyPatch.context() as patch:
        patch.setenv("DOCKER_HOST", f"unix://{service.socket}")
        yield service


@pytest.fixture(scope="module")
def containers(engine: PodmanService) -> Generator[ContainerHarness]:
    with private_state() as state_dir:
        config = prepare(state_dir)
        pool = open_pool(state_dir, config, asyncio.run(_pool_of(state_dir)))
        templates = Templates(pool, state_dir)
        try:
            yield ContainerHarness(state_dir, templates)
        finally:
            templates.close()
            pool.close()


async def _pool_of(state_dir: Path) -> int:
    backend = JailBackend(state_dir)
    try:
        return os.dup(await backend.pool())
    finally:
        await backend.aclose()


class _OnAnEngine:
    @pytest.fixture
    def harness(self, containers: ContainerHarness) -> ContainerHarness:
        reason = containers.backend().probe()
        if reason is not None:
            pytest.skip(f"no container here: {reason}")
        return containers


class TestContainers(_OnAnEngine, LifeConformance, AdoptionConformance, LimitConformance):
    """What depends on the engine. The guest and its protocol are those of the other levels."""


@pytest.mark.slow
class TestEveryPromise(_OnAnEngine, BackendConformance):
    """With all that the guest does."""
