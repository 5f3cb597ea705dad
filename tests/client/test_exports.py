"""What `paddock` and its client export, seen by programs and by type checkers alike."""

from __future__ import annotations

import ast
import importlib
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import paddock
import paddock.client
import paddock.model


def declared(package: ModuleType = paddock) -> dict[str, str]:
    """The names that a type checker sees, with the modules they come from."""
    tree = ast.parse(Path(str(package.__file__)).read_text())
    block = next(node for node in tree.body if isinstance(node, ast.If))
    imports = [node for node in block.body if isinstance(node, ast.ImportFrom)]
    return {alias.name: node.module or "" for node in imports for alias in node.names if alias.asname == alias.name}


def test_the_names_of_the_client_are_where_type_checkers_see_them() -> None:
    package = paddock.client
    assert declared(package) == {name: home.removeprefix(".") for name, home in package.HOMES.items()}
    assert all(hasattr(package, name) for name in declared(package))


def test_type_checkers_see_each_name_of_the_model_where_it_is_defined() -> None:
    package = paddock.model
    assert all(hasattr(package, name) for name in package.HOMES)
    tree = ast.parse(Path(package.__file__).read_text())
    block = next(node for node in tree.body if isinstance(node, ast.If))
    seen = [node.module or "" for node in block.body if isinstance(node, ast.ImportFrom)]
    assert seen == sorted(set(package.HOMES.values()))
    for name, home in package.HOMES.items():
        assert [module for module in seen if name in defined(module)] == [home], name


def test_no_program_asks_the_model_for_a_name_that_type_checkers_alone_see() -> None:
    asked: set[str] = set()
    for path in Path(str(paddock.__file__)).parent.rglob("*.py"):
        text = path.read_text()
        for names in re.findall(r"from paddock\.model import (\([^)]*\)|.*)", text):
            asked.update(re.findall(r"(\w+)(?: as \w+)?", names.split("#")[0]))
        if re.search(r"from paddock import .*\bmodel\b", text):
            asked.update(re.findall(r"\bmodel\.([A-Z]\w*)", text))
    modules = {path.stem for path in Path(str(paddock.model.__file__)).parent.glob("*.py")}
    assert len(asked) > 100
    assert asked - modules <= paddock.model.HOMES.keys()


def defined(module: str) -> set[str]:
    """The names that a module of the model defines itself."""
    found: set[str] = set()
    for node in ast.parse((Path(paddock.model.__file__).parent / f"{module}.py").read_text()).body:
        match node:
            case ast.ClassDef(name=name) | ast.FunctionDef(name=name) | ast.AnnAssign(target=ast.Name(id=name)):
                found.add(name)
            case ast.Assign(targets=[ast.Name(id=name)]):
                found.add(name)
            case _:
                pass
    return found


def test_programs_and_type_checkers_see_the_same_names() -> None:
    assert declared() == paddock._HOMES
    assert sorted([*declared(), "__version__"]) == paddock.__all__ == dir(paddock)


def test_every_name_is_there() -> None:
    for name, home in declared().items():
        assert getattr(paddock, name) is getattr(importlib.import_module(home), name)


def test_what_a_program_has_to_name_in_its_types_is_there() -> None:
    from paddock import AsyncProcess, AsyncSandbox, Process, Sandbox

    assert Sandbox.attach.__annotations__["return"] == Process.__name__
    assert AsyncSandbox.attach.__annotations__["return"] == AsyncProcess.__name__


def test_both_colours_are_exported_in_pairs() -> None:
    names = {name for name in dir(paddock.client) if name[0].isupper()}
    asynchronous = {name.removeprefix("Async") for name in names if name.startswith("Async")}
    assert asynchronous
    assert asynchronous <= names


HEAVY_FOR_A_CLIENT = (
    "argparse",
    "asyncio",
    "cryptography",
    "dataclasses",
    "h2",
    "inspect",
    "logging",
    "msgspec",
    "paddock._renamed",
    "paddock.backends",
    "paddock.daemon",
    "paddock.policy",
    "paddock.storage",
    "pathlib",
    "rich",
    "sqlalchemy",
    "sqlite3",
    "ssl",
    "tarfile",
    "threading",
    "typing",
    "yaml",
)
"""The daemon's rooms, and what takes as long to import as all that a client needs."""


def loaded(script: str, modules: tuple[str, ...]) -> list[str]:
    """Which of `modules` a new interpreter has loaded at the end of `script`."""
    script += f"; import sys; print('loaded', *[name for name in {modules} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return done.stdout.split()[1:]


def test_importing_the_client_loads_nothing_of_the_daemon() -> None:
    assert loaded("from paddock import Sandbox", HEAVY_FOR_A_CLIENT) == []


def test_the_daemon_loads_nothing_before_it_is_asked_for_it() -> None:
    """Each of these takes as long as several sandboxes: the controller and the supervisor are other processes."""
    needed = (
        "paddock.daemon.main.start, paddock.backends.jail, paddock.policy, paddock.daemon.main.service, paddock.storage"
    )
    heavy = (
        "importlib.metadata",
        "paddock.client._unpack",
        "paddock.vmm.controller",
        "paddock.supervisor._serve",
        "sqlalchemy",
        "tarfile",
    )
    assert loaded(f"import {needed}", heavy) == []
