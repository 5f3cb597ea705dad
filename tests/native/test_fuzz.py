"""libFuzzer on whatever reads bytes of a peer."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.native.driver import build_module
from tests.native.test_protocol import CONVERSATION

RUNS = 50_000


@pytest.mark.parametrize("target", ["messages"])
def test_no_bytes_break_a_reader(target: str, tmp_path: Path) -> None:
    if shutil.which("clang") is None:
        pytest.skip("libFuzzer needs clang: make check installs it")
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    for index, data in enumerate(CONVERSATION):
        (corpus / f"frame-{index}").write_bytes(data)
        (corpus / f"body-{index}").write_bytes(data[16:])
    program = build_module().fuzzer(target)
    try:
        order = [program, f"-runs={RUNS}", "-seed=1", "-max_len=512", "-verbosity=0", corpus]
        env = {**os.environ, "ASAN_OPTIONS": "detect_leaks=0"}
        done = subprocess.run(order, cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr[-4000:]
    finally:
        program.unlink()
