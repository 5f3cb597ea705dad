"""libFuzzer on whatever reads bytes of a peer."""

from __future__ import annotations

import os
import shutil
import subprocess
import tarfile
from pathlib import Path

import pytest

from paddock.wire import guest as messages
from paddock.wire.guest import Op
from tests.native.driver import ROOT, build_module
from tests.native.test_archives import HOSTILE, hard, link, member, tar
from tests.native.test_protocol import CONVERSATION

RUNS = 10_000


def sample(format: int) -> bytes:
    parts = (member("d" * 150, b"2"), link("l", "a" * 120), hard("h", "d" * 150), member("\u00fc", mtime=-5))
    return tar(*parts, format=format)


def operation(op: Op, request: messages.Message | None, stream: bytes = b"") -> bytes:
    """What fuzz/operations.c reads: the operation, whether EOF is said, its request, what comes on stream 0."""
    body = request.pack() if request else b""
    return bytes((op, 1)) + len(body).to_bytes(2, "little") + body + stream


EXACT = tar(member("top/", type=tarfile.DIRTYPE), member("top/e", b"in place of a directory"), link("top/l", "f"))
SEEDS = {
    "messages": [part for data in CONVERSATION for part in (data, data[16:])],
    "glob": [b"\x04a*[!bxyz", b"\x08[]a-c-]?name"],
    "regex": [b"\x0c(a|b)*[^c]{3}aaaabbb", b"\x10(?i:\\bfoo\\d+)$Foo12", b"\x0d(?P<n>a??)\\Zaa"],
    "lines": [
        b"\x02\x01\x01a\x02\x02\x04init\x03\x02\x03abc\x0d\x00\x05hello\x06\x00\x00\x07\x00\x00\x05\x02\x00\x01\x00\x00"
    ],
    "operations": [
        operation(Op.STAT, messages.Stat(path=b"/f")),
        operation(Op.MKDIR, messages.Mkdir(path=b"/d/x/y", flags=3, mode=0o700)),
        operation(Op.SET, messages.Set(path=b"/f", flags=15, mode=0o600, modified=-1)),
        operation(Op.REMOVE, messages.Remove(path=b"/d", flags=1)),
        operation(Op.MOVE, messages.Move(source=b"/d", destination=b"/x")),
        operation(Op.COPY, messages.Copy(source=b"/d", destination=b"/x")),
        operation(Op.LIST, messages.List(path=b"/", depth=9)),
        operation(Op.FIND, messages.Find(path=b"/", limit=5, name=b"[d-g]")),
        operation(Op.GREP, messages.Grep(path=b"/", limit=5, name=b"*", pattern=b"t.o|e$")),
        operation(Op.READ, messages.Read(path=b"/f", offset=2, length=9)),
        operation(Op.WRITE, messages.Write(path=b"/d/l", flags=1, mode=0o600), b"new"),
        operation(Op.WRITE, messages.Write(path=b"/new/file", flags=2), b"new"),
        operation(Op.UPLOAD, messages.Upload(path=b"/d"), sample(tarfile.PAX_FORMAT)),
        operation(Op.UPLOAD, messages.Upload(path=b"/d", flags=1, left_out=(b"g",)), EXACT),
        operation(Op.DOWNLOAD, messages.Download(path=b"/")),
        operation(Op.DOWNLOAD, messages.Download(path=b"/d", flags=1, left_out=(b"g",))),
        operation(Op.WATCH, messages.Watch(path=b"/", flags=1)),
        operation(Op.ECHO, None, b"echo"),
    ],
    "tar": list(HOSTILE.values()) + [sample(format) for format in (tarfile.PAX_FORMAT, tarfile.GNU_FORMAT)],
}
LONGEST = {"tar": 8192, "operations": 8192}
BUSY = {"operations": 2_000}
"""Runs of a target that makes system calls."""
HOUR_SECONDS = 3600


@pytest.mark.parametrize("target", SEEDS)
def test_no_bytes_break_a_reader(target: str, tmp_path: Path) -> None:
    fuzz(target, tmp_path, f"-runs={BUSY.get(target, RUNS)}", "-seed=1")


@pytest.mark.slow
@pytest.mark.timeout(HOUR_SECONDS + 600)
@pytest.mark.parametrize("target", SEEDS)
def test_no_bytes_break_a_reader_in_an_hour(target: str, tmp_path: Path) -> None:
    """`PADDOCK_FUZZ_SECONDS` makes it shorter."""
    fuzz(target, tmp_path, f"-max_total_time={os.environ.get('PADDOCK_FUZZ_SECONDS', HOUR_SECONDS)}")


def test_every_target_has_seeds() -> None:
    assert set(SEEDS) == {path.stem for path in (ROOT / "native" / "fuzz").glob("*.c")}


def fuzz(target: str, tmp_path: Path, *limits: str) -> None:
    if shutil.which("clang") is None:
        pytest.skip("libFuzzer needs clang: make check installs it")
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    for index, data in enumerate(SEEDS[target]):
        (corpus / str(index)).write_bytes(data)
    program = build_module().fuzzer(target)
    try:
        order = [program, *limits, f"-max_len={LONGEST.get(target, 512)}", "-verbosity=0", corpus]
        env = {**os.environ, "ASAN_OPTIONS": "detect_leaks=0"}
        done = subprocess.run(order, cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr[-4000:]
    finally:
        program.unlink()
