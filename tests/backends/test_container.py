"""A container keeps every promise of a backend."""

from __future__ import annotations

import pytest

from tests.backends.containers import ContainerHarness
from tests.conformance import (
    AdoptionConformance,
    BackendConformance,
    FileConformance,
    Lab,
    LifeConformance,
    LimitConformance,
    PauseConformance,
    StreamConformance,
)


class _OnAnEngine:
    @pytest.fixture
    def harness(self, containers: ContainerHarness) -> ContainerHarness:
        return containers


class TestContainers(_OnAnEngine, LifeConformance, AdoptionConformance):
    """What depends on the engine. The guest and its protocol are those of the other levels. Of an ordinary user's
    engine `test_container_engine.py` has samples."""

    def test_a_command_opens_its_streams_by_path(self, lab: Lab) -> None:
        """The program on an engine's pipes is not the owner of what is behind /proc/self/fd."""
        StreamConformance.test_a_command_opens_its_streams_by_path(self, lab)

    def test_root_opens_its_streams_by_path(self, lab: Lab) -> None:
        StreamConformance.test_root_opens_its_streams_by_path(self, lab)


@pytest.mark.both
class TestLimitsAndPauses(_OnAnEngine, LimitConformance, PauseConformance):
    """What depends on its control groups and on the owners of its files."""

    def test_the_systems_files_are_not_the_users(self, lab: Lab) -> None:
        """Without root on the host they are stored as one user's."""
        FileConformance.test_file_actions_have_no_more_rights_than_the_user(self, lab)


@pytest.mark.slow
class TestEveryPromise(_OnAnEngine, BackendConformance):
    """With all that the guest does."""
