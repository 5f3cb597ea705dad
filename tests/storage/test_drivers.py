"""Each driver that this machine has keeps the promises of the contract."""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path

import pytest

from paddock.errors import NotConfigured
from paddock.testing.pool import PoolConformance
from tests.storage.drivers import DriverHarness


def harness_for(driver: str, state_dir: Path) -> Generator[DriverHarness]:
    try:
        harness = DriverHarness(state_dir, driver)
    except NotConfigured as error:
        pytest.skip(str(error))
    yield harness
    harness.close()


class TestBtrfs(PoolConformance):
    @pytest.fixture
    def harness(self, tmp_path: Path) -> Generator[DriverHarness]:
        yield from harness_for("btrfs", tmp_path / "state")


class TestOverlay(PoolConformance):
    @pytest.fixture
    def harness(self, tmp_path: Path) -> Generator[DriverHarness]:
        yield from harness_for("overlay", tmp_path / "state")


class TestCopy(PoolConformance):
    @pytest.fixture
    def harness(self, tmp_path: Path) -> Generator[DriverHarness]:
        yield from harness_for("copy", tmp_path / "state")
