"""SPECIFICATION.md promises nothing whose proof is not there."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parent.parent.parent
_PROOF = re.compile(r"(?P<file>[\w./-]+\.py)(?:::(?P<name>\w+))?")


class Row(NamedTuple):
    id: str
    statement: str
    proof: str


def rows() -> list[Row]:
    """Rows of every table that has three columns and an id such as `J-04` first."""
    found: list[Row] = []
    for line in (ROOT / "SPECIFICATION.md").read_text().splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if len(cells) == 3 and re.fullmatch(r"[A-Z]+-\d+", cells[0]):
            found.append(Row(*cells))
    return found


@cache
def functions_in(file: Path) -> frozenset[str]:
    tree = ast.parse(file.read_text())
    return frozenset(node.name for node in ast.walk(tree) if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)))


def test_there_are_rows_and_no_id_twice() -> None:
    ids = [row.id for row in rows()]
    assert len(ids) > 20
    assert len(ids) == len(set(ids))


@pytest.mark.parametrize("row", rows(), ids=lambda row: row.id)
def test_every_row_has_a_proof_that_exists_or_says_pending(row: Row) -> None:
    assert row.statement
    proofs = list(_PROOF.finditer(row.proof))
    assert proofs or row.proof == "pending", f"{row.id}: neither a test, a benchmark nor `pending`: {row.proof}"
    for proof in proofs:
        file = ROOT / proof["file"]
        assert file.is_file(), f"{row.id}: {proof['file']} does not exist"
        assert proof["name"] is None or proof["name"] in functions_in(file), (
            f"{row.id}: no {proof['name']} in {file.name}"
        )
        assert proof["name"] or file.parts[-2] == "bench", f"{row.id}: a test is named by file::name"
