"""`make quick` runs the tests of what has changed."""

from __future__ import annotations

import pytest

from tools import quick

SOURCE = quick.ROOT / "src" / "paddock"
ROOMS = sorted(path.name for path in SOURCE.iterdir() if path.is_dir() and path.name != "__pycache__")


@pytest.mark.parametrize("room", ROOMS)
def test_every_room_has_tests(room: str) -> None:
    assert f"src/paddock/{room}/" in quick.TESTS
    assert set(quick.tests_for([f"src/paddock/{room}/_any.py"])) > set(quick.tests_for([]))


def test_every_test_that_is_named_exists() -> None:
    named = [name for names in (*quick.TESTS.values(), quick.ALWAYS) for name in names.split()]
    assert [name for name in named if not (quick.ROOT / "tests" / name).exists()] == []


def test_the_most_exact_row_counts_and_a_test_that_changed_is_its_own() -> None:
    always = quick.tests_for([])
    assert quick.tests_for(["src/paddock/storage/git/forges.py"]) == sorted([*always, "tests/results/test_forges.py"])
    assert quick.tests_for(["tests/policy/test_policy.py"]) == sorted([*always, "tests/policy/test_policy.py"])
    assert quick.tests_for(["README.md", "docs/tutorial.md", "tests/policy/test_that_was_deleted.py"]) == always
