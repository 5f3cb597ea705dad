"""No other way out, and secrets only there, at the levels above and below the jail: the core of acceptance tests 5 and
6, with other walls."""

from __future__ import annotations

import pytest

from paddock.errors import UnsupportedError
from tests.conftest import SandboxFactory
from tests.levels.conftest import LEVELS, engine, strongest
from tests.security.attacking import Attacker

from .rig import Internet
from .test_05_no_other_way_out import (
    POLICY,
    Neighbour,
    neighbours,
    test_another_sandbox_is_no_way_out,
    test_the_gateway_as_a_proxy_goes_nowhere_else,
    test_what_is_allowed_is_reached_and_nothing_else_by_tcp,
    test_with_the_gateway_killed_nothing_passes_and_soon_what_is_allowed_does_again,
)
from .test_06_secret_only_there import (
    make,
    test_it_arrives_in_each_place_that_it_is_bound_to_and_comes_back_in_none,
    test_on_its_way_to_anywhere_else_it_is_refused_and_found,
)

pytestmark = pytest.mark.slow


@pytest.fixture(params=LEVELS[1:])
def level(request: pytest.FixtureRequest, sandbox: SandboxFactory) -> str:
    """Those that have exits. `sandbox` skips what is not here."""
    if request.param == "container":
        request.getfixturevalue("engine")
    try:
        sandbox(level=request.param, policy={"egress": {"allow": []}}).kill()
    except UnsupportedError as error:
        pytest.skip(str(error))
    return request.param


@pytest.fixture(params=["user", "root"])
def who(request: pytest.FixtureRequest, sandbox: SandboxFactory, level: str) -> str | None:
    """The `user` of an exec, where the level has him: a container has a root without root's help."""
    if request.param == "user":
        return None
    if strongest(sandbox(level=level)).user is None:
        pytest.skip(f"there is no root inside for an ordinary user at level {level}")
    return "root"


@pytest.fixture
def fenced(sandbox: SandboxFactory, level: str, internet: Internet, neighbours: list[Neighbour]) -> Attacker:
    internet.site("good.test")
    return strongest(sandbox(level=level, policy=POLICY))
