"""Pools for images, and programs to put into them."""

from __future__ import annotations

import os
from collections.abc import Generator
from pathlib import Path

import pytest

from paddock.storage import Pool
from tests.images.layouts import static_busybox
from tests.storage.drivers import DriverHarness


@pytest.fixture(params=["copy", "overlay", pytest.param("btrfs", marks=pytest.mark.root)])
def harness(request: pytest.FixtureRequest, tmp_path: Path) -> Generator[DriverHarness]:
    from paddock.errors import NotConfiguredError

    try:
        harness = DriverHarness(tmp_path / "state", request.param)
    except NotConfiguredError as error:
        pytest.skip(str(error))
    yield harness
    harness.close()


@pytest.fixture
def pool(harness: DriverHarness) -> Generator[Pool]:
    pool = harness.open()
    yield pool
    pool.close()


@pytest.fixture(scope="session")
def busybox() -> bytes:
    found = static_busybox()
    if found is None:
        pytest.skip("no static busybox here: apt-get install busybox-static")
    return found


@pytest.fixture
def as_root() -> bool:
    return os.geteuid() == 0
