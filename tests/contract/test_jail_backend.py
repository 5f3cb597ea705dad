"""The jail keeps every promise that it makes."""

from __future__ import annotations

import time
from collections.abc import Generator
from pathlib import Path

import pytest

from paddock.backends import SandboxPlan
from paddock.backends.jail import JailBackend, SupervisorClient
from paddock.model import IdPrefix, SandboxId, SandboxSpec, mint
from paddock.storage import Pool, Templates
from tests.backends.vmms import furnished
from tests.conformance import (
    AdoptionConformance,
    ArchiveConformance,
    BackendConformance,
    BackgroundConformance,
    Bench,
    DirectoryConformance,
    ExecConformance,
    FileConformance,
    KillConformance,
    LifeConformance,
    LimitConformance,
    LoadConformance,
    MountConformance,
    NameConformance,
    PauseConformance,
    PortConformance,
    PtyConformance,
    SearchConformance,
    StreamConformance,
)
from tests.conftest import private_state


class JailHarness:
    """One state directory with a pool and the template `host`, for all tests of this file."""

    def __init__(self, state_dir: Path, pool: Pool, templates: Templates) -> None:
        self.state_dir = state_dir
        self.pool = pool
        self.templates = templates
        self.supervisor = SupervisorClient(state_dir)

    def backend(self) -> JailBackend:
        return JailBackend(self.state_dir, supervisor=self.supervisor)

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


@pytest.fixture(scope="module")
def jails() -> Generator[JailHarness]:
    with private_state() as state_dir, furnished(state_dir) as (pool, templates):
        yield JailHarness(state_dir, pool, templates)


class _InAJail(Bench):
    @pytest.fixture
    def harness(self, jails: JailHarness) -> JailHarness:
        reason = JailBackend(jails.state_dir).probe()
        if reason is not None:
            pytest.skip(f"no jail here: {reason}")
        return jails


@pytest.mark.both
class TestJailBackend(
    _InAJail,
    ExecConformance,
    StreamConformance,
    KillConformance,
    BackgroundConformance,
    PtyConformance,
    FileConformance,
    DirectoryConformance,
    ArchiveConformance,
    MountConformance,
    PortConformance,
    LifeConformance,
    AdoptionConformance,
    PauseConformance,
    LoadConformance,
    LimitConformance,
):
    """With the next class, all chapters."""


class TestNames(_InAJail, NameConformance, SearchConformance):
    """What the guest makes of names is the same for everybody."""


def test_no_chapter_is_left_out() -> None:
    assert set(BackendConformance.__bases__) <= {*TestJailBackend.__bases__, *TestNames.__bases__}
