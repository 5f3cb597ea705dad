"""Print which branches of the guest's parsers no seed of its fuzz targets takes.

    python -m tests.native.coverage

The seeds of `test_fuzz.py` are enough: every branch of these files is taken by one of them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.native.driver import ROOT, build_module
from tests.native.test_fuzz import SEEDS

TARGETS = ("messages", "wire", "tar", "regex", "glob")
TAKEN, NOT_TAKEN = 4, 5
"""Where a branch of `llvm-cov export` has how often its condition held, and how often it didn't."""


def untaken() -> list[str]:
    """FILE:LINE:COLUMN and the side of each branch that no seed takes."""
    build = build_module()
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        programs = [run(build.fuzzer(target, coverage=True), target, directory) for target in TARGETS]
        profile = directory / "all.profdata"
        subprocess.run(["llvm-profdata", "merge", "-o", profile, *directory.glob("*.profraw")], check=True)
        order = ["llvm-cov", "export", "-instr-profile", profile, programs[0]]
        order += [word for program in programs[1:] for word in ("-object", program)]
        exported = subprocess.run(order, capture_output=True, text=True, check=True).stdout
        for program in programs:
            program.unlink()
    return list(branches(json.loads(exported)["data"][0], set(build.COVERED)))


def run(program: Path, target: str, directory: Path) -> Path:
    corpus = directory / target
    corpus.mkdir()
    for index, seed in enumerate(SEEDS[target]):
        (corpus / str(index)).write_bytes(seed)
    env = {**os.environ, "LLVM_PROFILE_FILE": str(directory / f"{target}.profraw")}
    order = [program, "-runs=0", "-max_len=2000000", "-verbosity=0", corpus]
    done = subprocess.run(order, cwd=directory, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return program


def branches(data: dict[str, list[dict[str, object]]], wanted: set[str]) -> list[str]:
    found: list[str] = []
    for file in data["files"]:
        path = Path(str(file["filename"]))
        if path.suffix != ".c" or path.stem not in wanted or path.parent.name != "native":
            continue
        for branch in sorted(map(tuple, file["branches"])):  # pyright: ignore[reportArgumentType]
            line, column = branch[0], branch[1]
            text = (ROOT / "native" / path.name).read_text().splitlines()[line - 1].strip()
            if text.startswith("must("):
                continue
            sides = [side for side, at in (("true", TAKEN), ("false", NOT_TAKEN)) if not branch[at]]
            found += [f"{path.name}:{line}:{column} is never {side}: {text}" for side in sides]
    return found


if __name__ == "__main__":
    print(*untaken(), sep="\n")
    sys.exit(0)
