"""The catalogue. Each file is about one way in which a poisoned thing gets hold of an agent."""

from __future__ import annotations

from paddock.eval._scenario import Scenario


def catalogue() -> tuple[Scenario, ...]:
    from . import leaving, lying, reading, running

    return (*reading.SCENARIOS, *running.SCENARIOS, *leaving.SCENARIOS, *lying.SCENARIOS)
