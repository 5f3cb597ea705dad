"""Write docs/guarantees.md from docs/guarantees.toml. `--check` compares and writes nothing. An id prints its tests."""

from __future__ import annotations

import ast
import fnmatch
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "docs" / "guarantees.toml"
PAGE = ROOT / "docs" / "guarantees.md"
INTRO = """\
<!-- Generated from docs/guarantees.toml by tools/guarantees.py. Do not edit: `make fix`. -->

# Guarantees

Each row is a promise, and tests show it. `.venv/bin/python tools/guarantees.py ISO-01` prints the tests of a row.
The suite in `tests/conformance` runs once for each level, from `tests/contract` and `tests/backends`.

- **Levels**: where the promise holds. *all* means `container`, `jail`, `gvisor` and `microvm`, never `process`. Where
  only the host's side matters, the tests use the jail.
- **User**: root, an ordinary user, or both. *watched* means that the kernel can't refuse: the supervisor measures and
  ends the sandbox. `paddock doctor` lists what this machine can't enforce.
- **Status**: *tested*, *pending* (nothing shows it yet), or the part that is open.

[SECURITY.md](../SECURITY.md) says who the attacker is and what paddock doesn't claim.
"""
FIGURES = """\
## Figures

The targets are for an idle machine with two processors and Linux 6.18. Only the ratios carry over to other machines.
[Benchmarks](benchmarks.md) says how each is measured.
"""


class Guarantee(NamedTuple):
    """A promise or a figure; `cells` are its columns on the page."""

    id: str
    group: str
    cells: tuple[str, ...]
    covers: list[str]
    proofs: list[str]


def load() -> list[Guarantee]:
    content = tomllib.loads(SOURCE.read_text())
    found: list[Guarantee] = []
    for row in content["promise"]:
        status = row.get("status", "tested" if row["proofs"] else "pending")
        cells = (row["promise"], row.get("levels", ""), row.get("user", ""), status)
        found.append(Guarantee(row["id"], row["group"], cells, row["covers"], row["proofs"]))
    for row in content["figure"]:
        cells = (row["what"], row["target"], row["measured"], row.get("status", "met"))
        found.append(Guarantee(row["id"], "Figures", cells, row["covers"], row["proofs"]))
    return found


def page() -> str:
    parts = [INTRO]
    for group, rows in groupby(load(), key=lambda row: row.group):
        figures = group == "Figures"
        heads = (
            ("id", "figure", "target", "measured", "status")
            if figures
            else ("id", "promise", "levels", "user", "status")
        )
        lines = [heads, ("---",) * 5, *((row.id, *row.cells) for row in rows)]
        table = "\n".join("| " + " | ".join(line) + " |" for line in lines)
        parts += [FIGURES if figures else f"## {group}\n", table + "\n"]
    return "\n".join(parts)


def tests_of(proof: str) -> list[str]:
    """Return the tests that `path::name` means, or the classes of tests. `*` in the name stands for anything."""
    path, _, pattern = proof.partition("::")
    if not (ROOT / path).is_file():
        return []
    return [f"{path}::{name}" for name in names(ROOT / path) if fnmatch.fnmatchcase(name, pattern)]


@cache
def names(file: Path) -> tuple[str, ...]:
    """Return the tests of a file, without those that pytest skips or expects to fail wherever they run."""
    tree = ast.parse(file.read_text())
    return () if off(tree) else tuple(running(tree))


def running(tree: ast.Module | ast.ClassDef) -> Iterator[str]:
    for node in tree.body:
        if isinstance(node, ast.ImportFrom):
            yield from (alias.name for alias in node.names if alias.name.startswith("test_"))
        elif isinstance(node, ast.ClassDef) and not off(node):
            if node.name.startswith("Test") and node.bases:
                yield node.name
            yield from running(node)
        elif (
            isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_") and not off(node)
        ):
            yield node.name


def off(node: ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Whether a mark, or a call without a condition, skips the node or expects its failure everywhere."""
    marks: list[ast.expr] = [] if isinstance(node, ast.Module) else [*node.decorator_list]
    for statement in node.body:
        if isinstance(statement, ast.Assign) and "pytestmark" in map(ast.unparse, statement.targets):
            marks += statement.value.elts if isinstance(statement.value, ast.List | ast.Tuple) else [statement.value]
        elif isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
            marks.append(statement.value)
    words = {ast.unparse(mark.func if isinstance(mark, ast.Call) else mark).split(".", 1)[-1] for mark in marks}
    return not words.isdisjoint({"skip", "xfail", "mark.skip", "mark.xfail"})


def main(arguments: list[str]) -> int:
    new = page()
    if arguments == ["--check"]:
        stale = not PAGE.is_file() or PAGE.read_text() != new
        if stale:
            print("docs/guarantees.md is not what docs/guarantees.toml says: make fix", file=sys.stderr)
        return stale
    if not arguments:
        PAGE.write_text(new)
    for row in load():
        if row.id in arguments:
            print("\n".join(test for proof in row.proofs for test in tests_of(proof) or [proof]))
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
