"""How the source is cut: telling names, imports that point down, generated code that is fresh."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
SOURCES = sorted((ROOT / "src").rglob("*.py"))
SAY_NOTHING = {"utils", "util", "common", "helpers", "helper", "misc", "manager", "managers", "core"}


def test_no_room_has_a_name_that_says_nothing() -> None:
    assert [path for path in SOURCES if SAY_NOTHING & {part.strip("_") for part in (path.stem, *path.parts)}] == []


def test_every_module_says_what_it_is() -> None:
    silent = [path for path in SOURCES if not path.read_text().lstrip().startswith(('"""', "# ", 'r"""'))]
    assert silent == []


def test_imports_point_down() -> None:
    run = subprocess.run([Path(sys.executable).parent / "lint-imports"], cwd=ROOT, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout + run.stderr


def test_the_synchronous_client_is_generated_from_the_asynchronous_one() -> None:
    tool = ROOT / "tools" / "unasync.py"
    if not tool.exists():
        pytest.skip("tools/unasync.py is not written yet")
    run = subprocess.run([sys.executable, tool, "--check"], cwd=ROOT, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout + run.stderr
