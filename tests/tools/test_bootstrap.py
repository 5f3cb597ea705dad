"""Set-up from nothing, in each of its ways."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
# The bootstrap refuses to run from a virtual environment, as a user's `python3` may be one.
PYTHON = Path(sys._base_executable)  # type: ignore[attr-defined]


def bootstrap(*arguments: str, python: Path = PYTHON) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [python, "-I", ROOT / "tools" / "bootstrap.py", *arguments], capture_output=True, text=True, check=False
    )


def test_an_interpreter_below_a_private_directory_is_not_preferred() -> None:
    # Not below pytest's own directory, which is private as a whole.
    with tempfile.TemporaryDirectory() as directory:
        home = Path(directory)
        shutil.copy(PYTHON.resolve(), home / "python3")
        probe = [home / "python3", "-I", "-S", ROOT / "tools" / "bootstrap.py", "--probe"]
        for mode, verdict in ((0o755, "good"), (0o700, "private")):
            home.chmod(mode)
            assert subprocess.run(probe, capture_output=True, text=True, check=True).stdout.strip() == verdict


def test_a_virtual_environment_is_not_built_upon() -> None:
    run = bootstrap("--probe", python=Path(sys.executable))
    assert (run.returncode, run.stdout) == (1, "")


def test_a_second_set_up_changes_nothing() -> None:
    setup = [ROOT / "tools" / "bootstrap"]
    subprocess.run(setup, check=True)
    stamp = ROOT / ".venv" / "paddock-setup"
    before = stamp.stat().st_mtime_ns
    run = subprocess.run(setup, capture_output=True, text=True, check=True)
    assert (run.stdout, run.stderr, stamp.stat().st_mtime_ns) == ("", "", before)


def test_what_pip_is_given_is_what_uv_would_install() -> None:
    uv = shutil.which("uv") or shutil.which("uv", path=str(ROOT / ".tools" / "bin"))
    if uv is None:
        pytest.skip("no uv to compare with")
    compiler = any(shutil.which(name) for name in ("gcc", "clang", "cc"))
    without = ["--no-group", "zig"] if compiler else []  # the wheel is for machines without one
    export = [
        uv,
        "export",
        "--quiet",
        "--frozen",
        "--no-emit-project",
        "--all-groups",
        *without,
        "--no-annotate",
        "--no-header",
    ]
    exported = subprocess.run(export, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    script = (
        "import runpy, sys, tomllib; m = runpy.run_path(sys.argv[1]);"
        "print(m['locked_requirements'](tomllib.load(open(sys.argv[2], 'rb'))))"
    )
    argv = [PYTHON, "-I", "-c", script, ROOT / "tools" / "bootstrap.py", ROOT / "uv.lock"]
    ours = subprocess.run(argv, capture_output=True, text=True, check=True).stdout
    assert parsed(ours) == parsed(exported)


def parsed(requirements: str) -> dict[str, tuple[str, frozenset[str]]]:
    """Name to version and hashes."""
    joined = requirements.replace("\\\n", " ")
    found: dict[str, tuple[str, frozenset[str]]] = {}
    for line in joined.splitlines():
        if match := re.match(r"([\w.-]+)==(\S+)", line):
            found[match[1]] = (match[2], frozenset(re.findall(r"--hash=(\S+)", line)))
    return found


def test_the_lock_is_that_of_the_project() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    lock = tomllib.loads((ROOT / "uv.lock").read_text())
    (locked,) = (package for package in lock["package"] if package["name"] == project["project"]["name"])
    wanted = sorted(re.match(r"[\w.-]+", text)[0] for text in project["project"]["dependencies"])  # type: ignore[index]
    assert sorted(edge["name"] for edge in locked["dependencies"]) == wanted


@pytest.mark.root
def test_an_ordinary_user_is_told_the_line_to_type(tmp_path: Path) -> None:
    """Without the programs that it looks for, and without the right to install them."""
    script = "import runpy, sys; m = runpy.run_path(sys.argv[1]); m['provide_system_packages']('bench', announce=True)"
    run = subprocess.run(
        ["/usr/bin/python3", "-I", "-c", script, ROOT / "tools" / "bootstrap.py"],
        env={"PATH": str(tmp_path)},
        user=65534,
        group=65534,
        extra_groups=(),
        cwd="/",
        capture_output=True,
        text=True,
        check=True,
    )
    assert "as root: apt-get install" in run.stderr
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("compiler", [True, False])
def test_the_guest_is_compiled_while_setting_up_where_only_ziglang_can(tmp_path: Path, compiler: bool) -> None:
    """Else the first sandbox compiles it, in silence. A program stands in for uv, and one for the new Python."""
    programs = tmp_path / "bin"
    programs.mkdir()
    python = '#!/bin/sh\necho "$@" >> compiled\n'
    uv = f"[ $1 = --version ] || {{ /bin/mkdir -p .venv/bin; printf '{python}' > .venv/bin/python;"
    uv += " /bin/chmod +x .venv/bin/python; }"
    for name in ("uv", *(("gcc",) if compiler else ())):
        (programs / name).write_text(f"#!/bin/sh\n{uv}\n")
        (programs / name).chmod(0o755)
    for name in ("tools/bootstrap.py", "uv.lock", "pyproject.toml"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    script = "import runpy, sys; runpy.run_path(sys.argv[1])['make_environment']()"
    argv = [PYTHON, "-I", "-c", script, tmp_path / "tools" / "bootstrap.py"]
    run = subprocess.run(argv, cwd=tmp_path, env={"PATH": str(programs)}, capture_output=True, text=True, check=True)
    said = [line.removeprefix("paddock setup: ") for line in run.stderr.splitlines()]
    assert said[-1] == "done"
    assert ("compiling the guest with ziglang" in said) != compiler
    compiled = tmp_path / "compiled"
    assert (compiled.read_text() if compiled.exists() else "") == ("" if compiler else "native/build.py\n")


@pytest.mark.root
@pytest.mark.parametrize("unpacks", [True, False])
def test_a_kernel_is_there_as_a_whole_or_not_at_all(tmp_path: Path, unpacks: bool) -> None:
    """Over programs that stand in for apt and dpkg: the second of them may fail half-way."""
    programs, place = tmp_path / "bin", tmp_path / "lib" / "kernel"
    programs.mkdir()
    unpack = 'mkdir -p "$3/boot" && touch "$3/boot/vmlinuz-6.1"' + ("" if unpacks else " && exit 1")
    for name, script in (
        ("apt-cache", "echo '  Depends: linux-image-6.1'"),
        ("apt-get", 'case "$*" in *download*) touch it.deb;; esac'),
        ("dpkg-deb", unpack),
    ):
        (programs / name).write_text(f"#!/bin/sh\n{script}\n")
        (programs / name).chmod(0o755)
    script = (
        "import runpy, sys; from pathlib import Path;"
        "m = runpy.run_path(sys.argv[1]); m['provide_kernel'](Path(sys.argv[2]))"
    )
    argv = ["/usr/bin/python3", "-I", "-c", script, ROOT / "tools" / "bootstrap.py", place]
    environment = {"PATH": f"{programs}:/usr/bin:/bin"}
    subprocess.run(argv, env=environment, capture_output=True, check=True)
    assert [file.name for file in place.parent.rglob("*") if file.is_file()] == ["vmlinuz-6.1"] * unpacks
    shutil.rmtree(programs)  # a second one needs none of them
    run = subprocess.run(argv, env=environment, capture_output=True, text=True, check=True)
    assert (run.stderr == "") == unpacks


@pytest.mark.root
@pytest.mark.parametrize(("year", "answers"), [(2022, True), (2022, False), (2024, True)])
def test_a_later_runsc_comes_from_the_machines_own_archive_where_its_own_is_old(
    tmp_path: Path, year: int, answers: bool
) -> None:
    programs, place = tmp_path / "bin", tmp_path / "lib" / "runsc"
    programs.mkdir()
    update = f'cp "${{line#Dir::Etc::SourceList=}}" {tmp_path}/asked' + ("" if answers else "; exit 1")
    apt = (
        'case "$*" in indextargets*) echo http://archive.invalid/debian/;; *download*) touch it.deb;; *update)\n'
        f"for line; do case $line in Dir::Etc::SourceList=*) {update};; esac; done;; *) exit 9;; esac"
    )
    for name, script in (
        ("runsc", f"echo runsc version 0.0~{year}1219.0"),
        ("apt-get", apt),
        ("dpkg-deb", 'mkdir -p "$3/usr/bin" && touch "$3/usr/bin/runsc"'),
    ):
        (programs / name).write_text(f"#!/bin/sh\n{script}\n")
        (programs / name).chmod(0o755)
    script = (
        "import runpy, sys; from pathlib import Path;"
        "m = runpy.run_path(sys.argv[1]); m['provide_runsc'](Path(sys.argv[2]))"
    )
    argv = ["/usr/bin/python3", "-I", "-c", script, ROOT / "tools" / "bootstrap.py", place]
    environment = {"PATH": f"{programs}:/usr/bin:/bin"}
    subprocess.run(argv, env=environment, capture_output=True, check=True)
    there = [str(file.relative_to(place.parent)) for file in place.parent.rglob("*") if file.is_file()]
    assert there == ["runsc/usr/bin/runsc"] * (year < 2023 and answers)
    if year < 2023:
        assert (tmp_path / "asked").read_text().endswith(" http://archive.invalid/debian/ trixie main\n")
