"""The reference is what the sources say, and leaves out no public name."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import paddock
from paddock.model.any_action import BY_TAG
from tools import reference

ROOT = Path(__file__).parent.parent.parent


def test_the_reference_is_fresh() -> None:
    run = subprocess.run([sys.executable, ROOT / "tools/reference.py", "--check"], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr


def test_every_public_class_and_every_action_has_its_heading() -> None:
    text = "\n".join(page.read_text() for page in reference.TARGET.glob("*.md"))
    public = {name for name in paddock.__all__ if name[0].isupper()} - {
        "AsyncConnection",
        "AsyncProcess",
        "AsyncSandbox",
        "AsyncSnapshot",
        "AsyncWorkspace",
    }  # the same, awaited
    assert {name for name in public if f"## {name}\n" not in text and f"| `{name}` |" not in text} == {"PaddockError"}
    assert "* PaddockError\n" in text
    assert all(f"`{action.__name__}`, gives" in text for action in BY_TAG.values())


def test_a_stale_page_and_one_too_many_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reference, "TARGET", tmp_path)
    assert reference.main(["--check"]) == 1
    (tmp_path / "old.md").write_text("of a class that is gone")
    assert reference.main([]) == 0
    assert reference.main(["--check"]) == 0
    assert not (tmp_path / "old.md").exists()
    (tmp_path / "errors.md").write_text("")
    assert reference.main(["--check"]) == 1


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("def f(self, a: int, b=2): ...", "f(a: int, b = 2)"),
        ("def f(self, *, key: str): ...", "f(*, key: str)"),
        ("def f(self): ...", "f()"),
    ],
)
def test_signatures_are_those_of_a_caller(source: str, expected: str) -> None:
    node = ast.parse(source).body[0]
    assert isinstance(node, ast.FunctionDef)
    assert reference.signature(node) == expected
