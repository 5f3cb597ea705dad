"""The lists of tests/modes.py name files that exist, and a test that they call pure gets no state directory."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests import conftest, modes

TESTS = Path(__file__).parent.parent


def test_each_name_is_of_one_file() -> None:
    names = [
        f"{folder}/test_{name}.py"
        for table in (modes.PURE, modes.ONCE)
        for folder, listed in table.items()
        for name in listed.split()
        if name != "*"
    ]
    assert sorted(set(names)) == sorted(names)
    assert [name for name in names if not (TESTS / name).is_file()] == []


def test_what_only_an_ordinary_user_can_show_carries_the_marker() -> None:
    """Otherwise a file that runs as root only would never run it."""
    skips = re.compile(r"skipif\(os\.gete?uid\(\) == 0")
    assert [str(path) for path in TESTS.rglob("test_*.py") if skips.search(path.read_text())] == []


def test_a_pure_test_gets_no_state_directory() -> None:
    with pytest.raises(pytest.fail.Exception, match="pure"), conftest.private_state():
        pass


@pytest.mark.parametrize("fixture", ["state_dir", "shared_state"])
def test_a_pure_test_that_asks_for_one_fails_before_it_is_made(
    fixture: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    item = request.node
    monkeypatch.setattr(item, "fixturenames", [fixture])
    with pytest.raises(pytest.fail.Exception, match="pure"):
        modes.begin(item)
