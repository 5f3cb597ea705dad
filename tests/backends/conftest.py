from __future__ import annotations

from collections.abc import Generator
from pathlib import Path

import pytest

from tests.backends.containers import ContainerHarness, container_harness
from tests.backends.engines import PodmanService, podman_service
from tests.backends.microvms import MicrovmHarness, microvm_harness


@pytest.fixture
def long_directory(tmp_path: Path) -> Path:
    """Longer than the address of a unix socket may be."""
    directory = tmp_path / ("d" * 120)
    directory.mkdir()
    return directory


@pytest.fixture(scope="session")
def microvms() -> Generator[MicrovmHarness]:
    with microvm_harness() as harness:
        yield harness


@pytest.fixture(scope="module")
def engine() -> Generator[PodmanService]:
    """A container engine of the tests' own, which backends made meanwhile find."""
    with podman_service() as service, pytest.MonkeyPatch.context() as patch:
        patch.setenv("DOCKER_HOST", f"unix://{service.socket}")
        yield service


@pytest.fixture(scope="module")
def containers(engine: PodmanService) -> Generator[ContainerHarness]:
    with container_harness() as harness:
        reason = harness.backend().probe()
        if reason is not None:
            pytest.skip(f"no container here: {reason}")
        yield harness
