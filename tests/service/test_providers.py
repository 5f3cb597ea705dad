"""Which backend serves a level, and how many are loaded to find that out."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from service_world import Rig, WorldBackend

from paddock.errors import LevelUnavailableError, NotConfiguredError
from paddock.model import Level
from paddock.service._providers import Backends


class Named(WorldBackend):
    """A backend under a name of its own."""

    def __init__(self, world: Any, name: str, level: Level) -> None:
        super().__init__(world, level=level)
        self._name = name

    @property
    def name(self) -> str:
        return self._name


def installed(rig: Rig, loaded: list[str]) -> Iterator[Any]:
    for name, level in (("first", Level.JAIL), ("second", Level.JAIL), ("third", Level.PROCESS)):
        loaded.append(name)
        yield Named(rig.world, name, level)


def test_no_more_are_loaded_than_are_looked_at(rig: Rig) -> None:
    loaded: list[str] = []
    backends = Backends(lambda: installed(rig, loaded))
    assert (backends.loaded(), loaded) == ((), [])
    assert backends.choose(None).name == backends.choose(Level.JAIL).name == backends.named("first").name == "first"
    assert loaded == ["first"]
    assert backends.named("second").name == "second"
    assert loaded == ["first", "second"]
    assert [backend.name for backend in backends.all()] == ["first", "second", "third"] == loaded
    assert [backend.name for backend in backends.all()] == ["first", "second", "third"] == loaded


def test_a_search_that_ends_early_leaves_the_rest_to_be_found(rig: Rig) -> None:
    backends = Backends(lambda: installed(rig, []))
    assert backends.find("nowhere") is None
    assert backends.choose(Level.PROCESS).name == "third"
    with pytest.raises(NotConfiguredError):
        backends.named("nowhere")
    with pytest.raises(LevelUnavailableError, match="no backend of that level"):
        backends.choose(Level.MICROVM)
