"""What a stranger installs: the distribution, built from the sources alone and run in an empty environment."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
PYTHON = sys._base_executable  # type: ignore[attr-defined]
_NOT_CLONED = shutil.ignore_patterns(".venv", ".tools", ".git", "out", "dist", "__pycache__", ".*_cache", ".hypothesis")
_MOST_BYTES = 8 << 20
_TEN_LINES = """
from paddock import Limits, Sandbox

with Sandbox.create("code-interpreter", ttl_seconds=120, limits=Limits(memory_mib=512)) as sbx:
    sbx.filesystem.write("cell.py", "print(sum(range(10)))")
    result = sbx.exec("python3 cell.py", timeout_seconds=30)
    print(result.exit_code, result.stdout.strip())
    print(sbx.exec("python3 -m pytest --version").ok)
"""


def run(*argv: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run without what the tests' own environment adds. pip's configuration stays."""
    env = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL_ENV"))}
    return subprocess.run(argv, env=env | environment, cwd="/", capture_output=True, text=True, check=False)


def index(done: subprocess.CompletedProcess[str]) -> None:
    """Skip with pip's words where it reaches no package index."""
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if "ERROR" in line or "error" in line] or [done.stderr]
        if any(
            word in done.stderr for word in ("No matching distribution", "Connection", "connection", "resolve host")
        ):
            pytest.skip(f"pip's package index can't be had: {lines[-1]}")
        pytest.fail(done.stderr)


@pytest.mark.timeout(300)
def test_the_distribution_is_built_from_a_clone_and_runs_in_an_empty_environment(
    tmp_path: Path, state_dir: Path
) -> None:
    clone, dist, builder, empty = (tmp_path / name for name in ("clone", "dist", "builder", "empty"))
    shutil.copytree(ROOT, clone, ignore=_NOT_CLONED)
    for venv, how in ((builder, ()), (empty, ("--without-pip",))):
        assert run(PYTHON, "-m", "venv", *how, venv).returncode == 0
    python = builder / "bin" / "python"
    index(run(python, "-m", "pip", "install", "-q", "hatchling"))
    # The wheel comes from the sdist, as an installer without our wheel makes it.
    built = run("sh", "-c", f"cd {clone} && exec {python} -m hatchling build -t sdist -d {dist}")
    assert built.returncode == 0, built.stderr
    (sdist,) = dist.glob("paddock_sandbox-*.tar.gz")
    assert run("tar", "-xzf", sdist, "-C", tmp_path).returncode == 0
    (source,) = tmp_path.glob("paddock_sandbox-*/")
    built = run("sh", "-c", f"cd {source} && exec {python} -m hatchling build -t wheel -d {dist}")
    assert built.returncode == 0, built.stderr
    (wheel,) = dist.glob("paddock_sandbox-*.whl")
    assert max(sdist.stat().st_size, wheel.stat().st_size) < _MOST_BYTES
    if shutil.which("cc") is not None:
        assert any(name.startswith("paddock/native/paddock-guest-") for name in zipfile.ZipFile(wheel).namelist())

    index(run(python, "-m", "pip", "--python", empty / "bin" / "python", "install", "-q", wheel))
    (tmp_path / "ten.py").write_text(_TEN_LINES)
    done = run(empty / "bin" / "python", "-W", "error", tmp_path / "ten.py", PADDOCK_STATE_DIR=str(state_dir))
    if "LevelUnavailableError" in done.stderr:
        pytest.skip(done.stderr.splitlines()[-1])
    assert (done.stdout, done.stderr, done.returncode) == ("0 45\nTrue\n", "", 0)
    version = run(empty / "bin" / "paddock", "--version", PADDOCK_STATE_DIR=str(state_dir))
    assert version.stdout.startswith("paddock ")
    assert run(empty / "bin" / "paddock", "daemon", "stop", PADDOCK_STATE_DIR=str(state_dir)).returncode == 0
