"""A vessel keeps every promise of a backend, and its parts die together."""

from __future__ import annotations

from collections.abc import Generator

import pytest

from paddock.storage import Templates, open_pool, prepare
from paddock.testing.conformance import BackendConformance
from tests.backends.vessels import VesselHarness, pool_of
from tests.conftest import private_state


@pytest.fixture(scope="module")
def vessels() -> Generator[VesselHarness]:
    with private_state() as state_dir:
        config = prepare(state_dir)
        pool = open_pool(state_dir, config, pool_of(state_dir))
        templates = Templates(pool, state_dir)
        try:
            yield VesselHarness(state_dir, pool, templates)
        finally:
            templates.close()
            pool.close()


class TestVessel(BackendConformance):
    @pytest.fixture
    def harness(self, vessels: VesselHarness) -> VesselHarness:
        reason = vessels.backend().probe()
        if reason is not None:
            pytest.skip(f"no jail here: {reason}")
        return vessels
