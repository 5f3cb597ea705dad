"""Virtual machines for tests: one state directory in which they are baked once."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

import msgspec
import pytest

from paddock.backends import SandboxPlan
from paddock.backends.microvm import MicrovmBackend
from paddock.model import Limits, SandboxSpec
from paddock.storage import Templates, open_pool, prepare
from tests.backends.vessels import VesselHarness, pool_of
from tests.conftest import private_state

SMALL = Limits(memory_mib=256, cpus=1.0, disk_mib=512, inodes=20_000)


class MicrovmHarness(VesselHarness):
    def backend(self) -> MicrovmBackend:  # pyright: ignore[reportIncompatibleMethodOverride]
        return MicrovmBackend(self.state_dir)

    async def plan(self, spec: SandboxSpec) -> SandboxPlan:
        """As small as what is asked for: each size is baked once."""
        asked = spec.limits
        limits = msgspec.structs.replace(
            asked, memory_mib=SMALL.memory_mib, cpus=SMALL.cpus, disk_mib=SMALL.disk_mib, inodes=SMALL.inodes
        )
        return await super().plan(msgspec.structs.replace(spec, limits=limits))


@contextmanager
def microvm_harness() -> Generator[MicrovmHarness]:
    """Skips where there are no virtual machines."""
    with private_state() as state_dir:
        reason = MicrovmBackend(state_dir).probe()
        if reason is not None:
            pytest.skip(f"no virtual machines here: {reason}")
        config = prepare(state_dir)
        pool = open_pool(state_dir, config, pool_of(state_dir))
        templates = Templates(pool, state_dir)
        try:
            yield MicrovmHarness(state_dir, pool, templates)
        finally:
            templates.close()
            pool.close()
