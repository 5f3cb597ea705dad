"""Virtual machines for tests: one state directory in which they are baked once."""

from __future__ import annotations

import msgspec

from paddock.backends import SandboxPlan
from paddock.backends.microvm import MicrovmBackend
from paddock.model import Limits, SandboxSpec
from tests.backends.vessels import VesselHarness

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
