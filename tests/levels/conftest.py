"""The same guarantees at every level that this machine has. One that it has not got is skipped, for its own reason."""

from __future__ import annotations

from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import pytest

from paddock import Limit, Limits, Sandbox, local
from paddock.client import stop_daemon
from paddock.errors import NotFoundError, UnsupportedError
from paddock.model import InspectSandbox
from tests.backends.engines import podman_service
from tests.conftest import SandboxFactory
from tests.security.attacking import Attacker

SMALL = Limits(memory_mib=256, cpus=1.0, disk_mib=512, inodes=20_000)
"""Of what is saved with its memory. All else has the default size, so that a machine is baked once for all of it."""
LEVELS = ("jail", "container", "gvisor", "microvm")


@pytest.fixture(params=LEVELS)
def level(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="session")
def engine(shared_state: Path) -> Generator[None]:
    """For containers: Podman with a store of its own, of which the next daemon knows."""
    with podman_service() as service, pytest.MonkeyPatch.context() as patch:
        patch.setenv("DOCKER_HOST", f"unix://{service.socket}")
        stop_daemon(shared_state, ends_sessions=False)
        yield


@pytest.fixture
def create(request: pytest.FixtureRequest, sandbox: SandboxFactory, level: str) -> SandboxFactory:
    """`create(**arguments of Sandbox.create)`, at the level of the test; dead after it."""
    if level == "container":
        request.getfixturevalue("engine")

    def make(**options: Any) -> Sandbox:
        options.setdefault("ttl_seconds", 900)  # the first machine is made in it, perhaps on an emulated processor
        try:
            made = sandbox(level=level, **options)
        except UnsupportedError as error:
            pytest.skip(str(error))
        assert made.level == level
        return made

    return make


@pytest.fixture
def attacker(create: SandboxFactory) -> Attacker:
    """The strongest inside: its root where there is one."""
    return strongest(create())


@pytest.fixture
def limited(create: SandboxFactory) -> Callable[..., Attacker]:
    """Such a one in a sandbox with the given limits, where they hold."""

    def make(**limits: Any) -> Attacker:
        made = create(limits=Limits(**limits))
        held = {limit.value for limit in local().perform(InspectSandbox(sandbox=made.id)).enforced}
        if missing := {name.removesuffix("_mib") for name in limits} & set(Limit) - held:
            pytest.skip(f"not enforced at level {made.level}: {', '.join(sorted(missing))}")
        return strongest(made)

    return make


@pytest.fixture
def bystander(create: SandboxFactory) -> Sandbox:
    return create()


def strongest(sandbox: Sandbox) -> Attacker:
    try:
        sandbox.exec(["true"], user="root", check=True)
    except (NotFoundError, UnsupportedError):
        return Attacker(sandbox, None)
    return Attacker(sandbox, "root")
