"""The backend without a wall keeps every promise that it makes."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path

import pytest

from paddock.backends import SandboxPlan
from paddock.backends.process import ProcessBackend
from paddock.model import IdPrefix, SandboxId, SandboxSpec, Template, User, mint
from tests.conformance import (
    BackendConformance,
    KillConformance,
    LifeConformance,
    PortConformance,
)

TEMPLATE = Template(
    name="host",
    digest="none",
    layers=(),
    host_usr=True,
    users=(User(name="user", uid=os.getuid(), gid=os.getgid(), home="/home/user"),),
    default_user="user",
)


class ProcessHarness:
    def __init__(self, state_dir: Path) -> None:
        self.state_dir = state_dir

    def backend(self) -> ProcessBackend:
        return ProcessBackend(self.state_dir)

    async def plan(self, spec: SandboxSpec) -> SandboxPlan:
        id = SandboxId(mint(IdPrefix.SANDBOX))
        deadline = time.clock_gettime(time.CLOCK_BOOTTIME) + spec.ttl_seconds
        return SandboxPlan(
            id=id, hostname=id.replace("_", "-"), spec=spec, template=TEMPLATE, tree=id, deadline=deadline
        )

    async def cleanup(self, plan: SandboxPlan) -> None:
        shutil.rmtree(self.state_dir / plan.tree, ignore_errors=True)


class _WithoutIsolation:
    @pytest.fixture
    def harness(self, tmp_path: Path) -> ProcessHarness:
        return ProcessHarness(tmp_path)


class TestProcessBackend(_WithoutIsolation, KillConformance, PortConformance, LifeConformance):
    """What the backend does itself. The guest agent is proved at the jail: tests/contract/test_jail_backend.py."""


@pytest.mark.slow
class TestEveryPromise(_WithoutIsolation, BackendConformance):
    """With all that the guest agent does."""
