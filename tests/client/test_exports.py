"""What `paddock` and its client export, seen by programs and by type checkers alike."""

from __future__ import annotations

import ast
import importlib
import subprocess
import sys
from pathlib import Path

import paddock
import paddock.client


def declared() -> dict[str, str]:
    """The names that a type checker sees, with the modules they come from."""
    tree = ast.parse(Path(paddock.__file__).read_text())
    block = next(node for node in tree.body if isinstance(node, ast.If))
    imports = [node for node in block.body if isinstance(node, ast.ImportFrom)]
    return {alias.name: node.module or "" for node in imports for alias in node.names if alias.asname == alias.name}


def test_programs_and_type_checkers_see_the_same_names() -> None:
    assert declared() == paddock._HOMES
    assert sorted([*declared(), "__version__"]) == paddock.__all__ == dir(paddock)


def test_every_name_is_there() -> None:
    for name, home in declared().items():
        assert getattr(paddock, name) is getattr(importlib.import_module(home), name)


def test_both_colours_are_exported_in_pairs() -> None:
    names = {name for name in vars(paddock.client) if name[0].isupper()}
    asynchronous = {name.removeprefix("Async") for name in names if name.startswith("Async")}
    assert asynchronous
    assert asynchronous <= names


def test_importing_the_client_does_not_import_a_service() -> None:
    script = "import paddock; paddock.Sandbox; import sys; print('paddock.service' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


def test_a_first_command_loads_nothing_but_what_it_needs() -> None:
    """Each of these takes as long as several sandboxes: the guest and the keeper are other processes."""
    needed = "paddock.daemon._main, paddock.backends.jail, paddock.policy, paddock.service, paddock.storage"
    heavy = (
        "importlib.metadata",
        "paddock.client._unpack",
        "paddock.guest._agent",
        "paddock.keeper._serve",
        "paddock.linux.cgroups",
        "sqlalchemy",
        "tarfile",
    )
    script = f"import {needed}, sys; print([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
