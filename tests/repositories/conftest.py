"""Repositories without sandboxes: a cache, servers to fetch from. Coroutine tests run in a loop of their own."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Generator
from pathlib import Path

import pytest

from tests.repositories.git_servers import HttpServer, Origin, git_daemon, http_backend
from tests.repositories.shelf import Shelf


@pytest.fixture
def origins(tmp_path: Path) -> Path:
    """Where the servers' repositories lie."""
    tmp_path.chmod(0o755)
    return tmp_path / "origins"


@pytest.fixture
def origin(origins: Path) -> Origin:
    made = Origin(origins / "app")
    made.commit({"README": "one\n", "src/main.py": "print(1)\n"})
    return made


@pytest.fixture
def daemon(origins: Path) -> Generator[object]:
    with git_daemon(origins) as server:
        yield server


@pytest.fixture
def http(origins: Path) -> Generator[HttpServer]:
    with http_backend(origins) as server:
        yield server


@pytest.fixture
def shelf(tmp_path: Path) -> Generator[Shelf]:
    made = Shelf(tmp_path / "state")
    yield made
    made.close()


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> object | None:
    function = pyfuncitem.obj
    if not inspect.iscoroutinefunction(function):
        return None
    arguments = {name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}
    asyncio.run(function(**arguments))
    return True
