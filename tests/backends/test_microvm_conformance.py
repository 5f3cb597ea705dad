"""A virtual machine keeps every promise of a backend."""

from __future__ import annotations

from collections.abc import Generator

import pytest

from tests.backends.microvms import MicrovmHarness, bake, microvm_harness
from tests.conformance import BackendConformance


@pytest.fixture(scope="module")
def microvms() -> Generator[MicrovmHarness]:
    with microvm_harness() as harness:
        bake(harness)
        yield harness


@pytest.mark.timeout(900)
@pytest.mark.slow  # emulated, each begins in half a second and computes at a tenth of the speed
class TestMicrovm(BackendConformance):
    @pytest.fixture
    def harness(self, microvms: MicrovmHarness) -> MicrovmHarness:
        return microvms
