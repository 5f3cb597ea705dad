"""A container keeps every promise of a backend."""

from __future__ import annotations

import pytest

from paddock.testing.conformance import (
    AdoptionConformance,
    BackendConformance,
    LifeConformance,
    LimitConformance,
)
from tests.backends.containers import ContainerHarness


class _OnAnEngine:
    @pytest.fixture
    def harness(self, containers: ContainerHarness) -> ContainerHarness:
        return containers


class TestContainers(_OnAnEngine, LifeConformance, AdoptionConformance, LimitConformance):
    """What depends on the engine. The guest and its protocol are those of the other levels."""


@pytest.mark.slow
class TestEveryPromise(_OnAnEngine, BackendConformance):
    """With all that the guest does."""
