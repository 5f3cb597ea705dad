"""A virtual machine keeps every promise of a backend."""

from __future__ import annotations

from collections.abc import Generator

import pytest

from paddock.storage import Templates, open_pool, prepare
from paddock.testing.conformance import BackendConformance
from tests.backends.microvms import MicrovmHarness
from tests.backends.vessels import pool_of
from tests.conftest import private_state


@pytest.fixture(scope="module")
def microvms() -> Generator[MicrovmHarness]:
    with private_state() as state_dir:
        config = prepare(state_dir)
        pool = open_pool(state_dir, config, pool_of(state_dir))
        templates = Templates(pool, state_dir)
        try:
            yield MicrovmHarness(state_dir, pool, templates)
        finally:
            templates.close()
            pool.close()


class TestMicrovm(BackendConformance):
    @pytest.fixture
    def harness(self, microvms: MicrovmHarness) -> MicrovmHarness:
        reason = microvms.backend().probe()
        if reason is not None:
            pytest.skip(f"no virtual machines here: {reason}")
        return microvms
