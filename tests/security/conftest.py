"""Sandboxes under attack, each by its ordinary user and, where there is one, by its root."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from attacking import Attacker

if TYPE_CHECKING:
    from paddock import Sandbox

Factory = Callable[..., "Sandbox"]


@pytest.fixture
def create(sandbox: Factory) -> Factory:
    """Makes jails; all are dead after the test."""
    return lambda **options: sandbox(level="jail", **options)


@pytest.fixture(params=["user", "root"])
def attacker(request: pytest.FixtureRequest, create: Factory) -> Attacker:
    """In a fresh sandbox: its ordinary user, then its root."""
    return _as(request.param, create)


@pytest.fixture
def second(attacker: Attacker, create: Factory) -> Attacker:
    """An accomplice in another sandbox, of the same standing."""
    return Attacker(create(), attacker.user)


@pytest.fixture(params=["user", "root"])
def limited(request: pytest.FixtureRequest, create: Factory) -> Callable[..., Attacker]:
    """Makes an attacker in a sandbox with the given limits."""

    def make(**limits: Any) -> Attacker:
        from paddock import Limits

        return _as(request.param, create, limits=Limits(**limits))

    return make


@pytest.fixture
def strongest(create: Factory) -> Callable[..., Attacker]:
    """The same with the strongest standing that there is inside: for limits that do not ask who it is."""

    def make(**limits: Any) -> Attacker:
        from paddock import Limits

        return _as("root" if _has_root_inside() else "user", create, limits=Limits(**limits))

    return make


@pytest.fixture
def bystander(create: Factory) -> Sandbox:
    """Another sandbox, which must not notice anything."""
    return create()


def _as(who: str, create: Factory, **options: Any) -> Attacker:
    if who == "root" and not _has_root_inside():
        pytest.skip("there is no root inside for an ordinary user without subordinate ids")
    return Attacker(create(**options), None if who == "user" else who)


def _has_root_inside() -> bool:
    return os.getuid() == 0
