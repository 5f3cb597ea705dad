"""The product finds the native guest, or says what is missing."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import paddock
from tests.native.driver import ROOT, build_module

PACKAGE = Path(paddock.__file__).parent
ASK = "from paddock.backends.guest import program; print(program())"


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """A package without a checkout around it, as a wheel lays it."""
    package = tmp_path / "site" / "paddock"
    shutil.copytree(PACKAGE, package, ignore=shutil.ignore_patterns("__pycache__"))
    return package


def ask(package: Path, home: Path, path: str) -> subprocess.CompletedProcess[str]:
    env = {"PYTHONPATH": str(package.parent), "XDG_CACHE_HOME": str(home), "PATH": path}
    return subprocess.run([sys.executable, "-P", "-c", ASK], env=env, capture_output=True, text=True, check=False)


def test_a_wheel_carries_it(installed: Path, tmp_path: Path) -> None:
    carried = installed / "native" / f"paddock-guest-{platform.machine()}"
    carried.parent.mkdir()
    carried.touch()
    assert ask(installed, tmp_path, "").stdout == f"{carried}\n"


def test_a_wheel_that_carries_none_says_what_to_install(installed: Path, tmp_path: Path) -> None:
    words = ask(installed, tmp_path, os.environ["PATH"]).stderr
    assert f"has no native guest for {platform.machine()}" in words
    assert "install a wheel that was built for this machine" in words


def test_a_checkout_without_a_compiler_says_which(tmp_path: Path) -> None:
    words = ask(PACKAGE, tmp_path, str(tmp_path)).stderr
    assert "the native guest is not built: paddock-guest needs gcc or clang" in words


def test_a_checkout_builds_it_once_and_the_same_sources_give_the_same_bytes(tmp_path: Path) -> None:
    package, cache = tmp_path / "checkout/src/paddock", tmp_path / "cache"
    shutil.copytree(PACKAGE, package, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(ROOT / "native", tmp_path / "checkout/native")
    first, second = (ask(package, cache, os.environ["PATH"]).stdout.strip() for _ in range(2))
    assert first == second
    assert [str(path) for path in cache.rglob("paddock-guest")] == [first]
    assert Path(first).read_bytes() == build_module().build().read_bytes(), "made elsewhere of the same sources"
    assert subprocess.run([first], check=False).returncode == 125, "it is started by nobody but the supervisor"
