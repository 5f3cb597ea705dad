"""Each driver that this machine has keeps the promises of the contract."""

from __future__ import annotations

import errno
import os
from collections.abc import Generator
from pathlib import Path

import pytest

from paddock.errors import NotConfiguredError
from paddock.storage import PoolConfig, open_pool
from paddock.storage.pool._directories import CopyPool
from tests.conformance.pool import PoolConformance
from tests.storage.drivers import DriverHarness


def harness_for(driver: str, state_dir: Path) -> Generator[DriverHarness]:
    try:
        harness = DriverHarness(state_dir, driver)
    except NotConfiguredError as error:
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


def test_a_pool_that_cannot_be_opened_keeps_no_descriptor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: CopyPool) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(CopyPool, "sweep", fail)
    fd = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)
    with pytest.raises(OSError, match="Input/output"):
        open_pool(tmp_path, PoolConfig(driver="copy"), fd)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)
