"""libFuzzer on whatever reads bytes of a peer."""

from __future__ import annotations

import os
import shutil
import subprocess
import tarfile
from pathlib import Path

import pytest

from tests.native.driver import build_module
from tests.native.test_archives import HOSTILE, hard, link, member, tar
from tests.native.test_protocol import CONVERSATION

RUNS = 10_000


def sample(format: int) -> bytes:
    parts = (member("d" * 150, b"2"), link("l", "a" * 120), hard("h", "d" * 150), member("\u00fc", mtime=-5))
    return tar(*parts, format=format)


SEEDS = {
    "messages": [part for data in CONVERSATION for part in (data, data[16:])],
    "glob": [b"\x04a*[!bxyz", b"\x08[]a-c-]?name"],
    "regex": [b"\x0c(a|b)*[^c]{3}aaaabbb", b"\x10(?i:\\bfoo\\d+)$Foo12", b"\x0d(?P<n>a??)\\Zaa"],
    "passwd": [b"u:x:1:1:u:/home/u:/bin/sh\n", b"g:x:7:a,u\n"],
    "lines": [
        b"\x02\x01\x01a\x02\x02\x04init\x03\x02\x03abc\x0d\x00\x05hello\x06\x00\x00\x07\x00\x00\x05\x02\x00\x01\x00\x00"
    ],
    "tar": list(HOSTILE.values()) + [sample(format) for format in (tarfile.PAX_FORMAT, tarfile.GNU_FORMAT)],
}
LONGEST = {"messages": 512, "glob": 512, "regex": 512, "passwd": 512, "lines": 512, "tar": 8192}


@pytest.mark.parametrize("target", SEEDS)
def test_no_bytes_break_a_reader(target: str, tmp_path: Path) -> None:
    if shutil.which("clang") is None:
        pytest.skip("libFuzzer needs clang: make check installs it")
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    for index, data in enumerate(SEEDS[target]):
        (corpus / str(index)).write_bytes(data)
    program = build_module().fuzzer(target)
    try:
        order = [program, f"-runs={RUNS}", "-seed=1", f"-max_len={LONGEST[target]}", "-verbosity=0", corpus]
        env = {**os.environ, "ASAN_OPTIONS": "detect_leaks=0"}
        done = subprocess.run(order, cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr[-4000:]
    finally:
        program.unlink()
