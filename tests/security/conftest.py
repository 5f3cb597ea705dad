"""Sandboxes under attack, each by its ordinary user and, where there is one, by its root."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from attacking import Attacker

from paddock import Sandbox
from paddock.errors import PaddockError

STATE_VARIABLE = "PADDOCK_STATE_DIR"


@pytest.fixture(scope="session")
def state_dir(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A state directory of these tests' own."""
    directory = tmp_path_factory.mktemp("paddock-security", numbered=True)
    directory.chmod(0o700)
    previous = os.environ.get(STATE_VARIABLE)
    os.environ[STATE_VARIABLE] = str(directory)
    yield directory
    if previous is None:
        del os.environ[STATE_VARIABLE]
    else:
        os.environ[STATE_VARIABLE] = previous


@pytest.fixture
def create(state_dir: Path) -> Iterator[Callable[..., Sandbox]]:
    """Makes jails; all are dead after the test."""
    made: list[Sandbox] = []

    def make(**options: Any) -> Sandbox:
        try:
            made.append(Sandbox.create(level="jail", **{"ttl_seconds": 120, **options}))
        except PaddockError as error:
            if error.code in ("level_unavailable", "not_configured"):
                pytest.skip(f"no jail here: {error}")
            raise
        return made[-1]

    yield make
    for sandbox in made:
        sandbox.kill()


@pytest.fixture(params=["user", "root"])
def attacker(request: pytest.FixtureRequest, create: Callable[..., Sandbox]) -> Attacker:
    """In a fresh sandbox: its ordinary user, then its root."""
    return _as(request.param, create())


@pytest.fixture(params=["user", "root"])
def limited(request: pytest.FixtureRequest, create: Callable[..., Sandbox]) -> Callable[..., Attacker]:
    """Makes an attacker in a sandbox with the given ceilings."""

    def make(**limits: Any) -> Attacker:
        from paddock import Limits

        return _as(request.param, create(limits=Limits(**limits)))

    return make


@pytest.fixture
def bystander(create: Callable[..., Sandbox]) -> Sandbox:
    """Another sandbox, which must not notice anything."""
    return create()


def _as(who: str, sandbox: Sandbox) -> Attacker:
    if who == "root" and os.getuid() != 0:
        pytest.skip("there is no root inside for an ordinary user")
    return Attacker(sandbox, None if who == "user" else who)
