"""Acceptance of the policy plane: the tests of each file run in a machine of their own, with the internet of `rig`.

Outside, the session hands its tests of a file to one inside, and reports what that one reports; see `handing_over`.
"""

from __future__ import annotations

import os
from collections.abc import Generator
from pathlib import Path

import pytest

from paddock.gateway.authority import Authority
from paddock.supervisor import layout
from tests.acceptance import handing_over
from tests.acceptance.rig import Internet, Records, open_internet

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if not handing_over.INSIDE:
        for item in items:
            if item.path.is_relative_to(HERE):
                item.add_marker(pytest.mark.timeout(0))  # those inside have one each


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
    if handing_over.INSIDE or not item.path.is_relative_to(HERE):
        return None
    handing_over.run(item, nextitem)
    return True


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    handing_over.tell(report)


def pytest_sessionfinish(session: pytest.Session) -> None:
    handing_over.stop(session)


@pytest.fixture(scope="session")
def _internet(tmp_path_factory: pytest.TempPathFactory) -> Generator[Internet]:
    public = Authority.make("public")
    trusted = tmp_path_factory.mktemp("public") / "public.pem"
    trusted.write_bytes(public.certificate)
    os.environ["SSL_CERT_FILE"] = str(trusted)  # of this process, which is the world's, and of its gateway
    with open_internet(public) as made:
        yield made


@pytest.fixture(autouse=True)
def internet(_internet: Internet) -> Internet:
    """Empty."""
    _internet.clear()
    return _internet


@pytest.fixture
def records(shared_state: Path) -> Records:
    return Records(shared_state / layout.AUDIT)


@pytest.fixture(params=["user", "root"])
def who(request: pytest.FixtureRequest) -> str | None:
    """The `user` of an exec: the ordinary one, then root where there is one inside."""
    if request.param == "user":
        return None
    if os.getuid() != 0:
        pytest.skip("there is no root inside for an ordinary user")
    return "root"
