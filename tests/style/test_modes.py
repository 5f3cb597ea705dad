"""The lists of tests/modes.py name files that exist, and a test that they call pure gets no state directory."""

from __future__ import annotations

import ast
import re
import tomllib
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests import conftest, modes
from tools import guarantees

TESTS = Path(__file__).parent.parent
TO_BOTH = [
    row for row in tomllib.loads(guarantees.SOURCE.read_text())["promise"] if row.get("user", "").startswith("both")
]


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


@pytest.mark.parametrize("row", TO_BOTH, ids=lambda row: row["id"])
def test_a_promise_to_both_users_keeps_a_test_that_runs_as_an_ordinary_user_or_is_pure(row: dict[str, Any]) -> None:
    tests = [test for proof in row["proofs"] for test in guarantees.tests_of(proof)]
    assert any(_shows_it_to_an_ordinary_user(*test.split("::")) for test in tests), tests


def _shows_it_to_an_ordinary_user(path: str, name: str) -> bool:
    file = TESTS.parent / path
    marks = _marks(file).get("", "") + _marks(file).get(name, "")
    if "pytest.mark.root" in marks or "pytest.mark.slow" in marks:
        return False
    return "pytest.mark.both" in marks or modes.listed(modes.PURE, file) or not modes.listed(modes.ONCE, file)


@cache
def _marks(file: Path) -> dict[str, str]:
    """The decorators of each function, and for "" what holds for the whole file."""
    tree = ast.parse(file.read_text())
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    whole = [ast.unparse(node) for node in tree.body if isinstance(node, ast.Assign)]
    return {node.name: "".join(map(ast.unparse, node.decorator_list)) for node in functions} | {
        "": "".join(line for line in whole if line.startswith("pytestmark"))
    }


def test_a_test_that_both_runs_repeat_is_in_a_file_that_only_one_runs() -> None:
    carries = re.compile(r"(?m)^@pytest\.mark\.both$")
    marked = [path for path in TESTS.rglob("test_*.py") if carries.search(path.read_text())]
    assert [str(path) for path in marked if not modes.listed(modes.ONCE, path)] == []


def test_a_file_of_which_an_ordinary_user_runs_nothing_is_not_imported_for_one() -> None:
    assert modes.may_differ(TESTS / "storage" / "test_templates.py")
    assert modes.may_differ(TESTS / "supervisor" / "test_jail.py")
    assert not modes.may_differ(TESTS / "gateway" / "test_h2.py")
    assert not modes.may_differ(TESTS / "cli" / "test_cli.py")


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
