"""A virtual machine keeps every promise of a backend."""

from __future__ import annotations

import pytest

from tests.backends.microvms import MicrovmHarness
from tests.conformance import BackendConformance


@pytest.mark.timeout(900)
@pytest.mark.slow  # emulated, each begins in half a second and computes at a tenth of the speed
class TestMicrovm(BackendConformance):
    @pytest.fixture
    def harness(self, microvms: MicrovmHarness) -> MicrovmHarness:
        return microvms
