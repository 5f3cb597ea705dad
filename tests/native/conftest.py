"""Every test runs against the program that ships and against one with AddressSanitizer and UBSan."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.native.driver import Connection, Guest, build_module


@pytest.fixture(scope="session", params=["release", "sanitized"])
def program(request: pytest.FixtureRequest) -> Path:
    return build_module().build(sanitize=request.param == "sanitized")


@pytest.fixture
def guest(program: Path, tmp_path: Path) -> Iterator[Guest]:
    with Guest(program, tmp_path / "s") as guest:
        yield guest


@pytest.fixture
def host(guest: Guest) -> Iterator[Connection]:
    connection = guest.connect()
    yield connection
    connection.close()
