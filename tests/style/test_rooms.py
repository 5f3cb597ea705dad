"""How the source is cut: telling names, imports that point down, generated code that is fresh."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
SOURCES = sorted((ROOT / "src").rglob("*.py"))
SAY_NOTHING = {"utils", "util", "common", "helpers", "helper", "misc", "manager", "managers", "core"}
OPEN = {"_async", "_sync", "_renamed"}  # the first two are the halves of one interface; the last is for old names


def test_no_room_has_a_name_that_says_nothing() -> None:
    assert [path for path in SOURCES if SAY_NOTHING & {part.strip("_") for part in (path.stem, *path.parts)}] == []


def test_every_module_says_what_it_is() -> None:
    silent = [path for path in SOURCES if not path.read_text().lstrip().startswith(('"""', "# ", 'r"""'))]
    assert silent == []


def test_imports_point_down() -> None:
    run = subprocess.run([Path(sys.executable).parent / "lint-imports"], cwd=ROOT, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout + run.stderr


def test_an_underscore_is_private_to_its_folder() -> None:
    reaching = [f"{path.relative_to(ROOT)}: {name}" for path in SOURCES for name in private_elsewhere(path)]
    assert reaching == [], "give the module a name without an underscore, or export from the package"


def private_elsewhere(path: Path) -> Iterator[str]:
    """Yield the private modules of paddock that `path` imports from another folder than its own or one above it."""
    folder = path.relative_to(ROOT / "src").parent.parts
    for node in ast.walk(ast.parse(path.read_text())):
        match node:
            case ast.ImportFrom(module=str(module), names=names, level=0) if module.startswith("paddock."):
                imported = [module, *(f"{module}.{name.name}" for name in names)]
            case ast.Import(names=names):
                imported = [name.name for name in names if name.name.startswith("paddock.")]
            case _:
                continue
        for name in imported:
            parts = tuple(name.split("."))
            private = [at for at, part in enumerate(parts) if part.startswith("_") and part not in OPEN]
            if private and folder[: private[0]] != parts[: private[0]]:
                yield name


def test_the_synchronous_client_is_generated_from_the_asynchronous_one() -> None:
    tool = ROOT / "tools" / "unasync.py"
    if not tool.exists():
        pytest.skip("tools/unasync.py is not written yet")
    run = subprocess.run([sys.executable, tool, "--check"], cwd=ROOT, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout + run.stderr
