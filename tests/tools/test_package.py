"""What a stranger installs: the distribution, built from the sources alone and run in an empty environment."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import platform
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.tools import aarch64

ROOT = Path(__file__).parent.parent.parent
PYTHON = sys._base_executable  # type: ignore[attr-defined]
_NOT_CLONED = shutil.ignore_patterns(
    ".venv", "node_modules", ".tools", ".git", "out", "dist", "__pycache__", ".*_cache", ".hypothesis"
)
_MOST_BYTES = 8 << 20
ELF_MACHINES = {"x86_64": 62, "aarch64": 183}
"""`e_machine` of elf(5)."""
TEN_LINES = """
from paddock import Limits, Sandbox

with Sandbox.create("code-interpreter", ttl_seconds=120, limits=Limits(memory_mib=512)) as sbx:
    sbx.filesystem.write("cell.py", "print(sum(range(10)))")
    result = sbx.exec("python3 cell.py", timeout_seconds=30)
    print(result.exit_code, result.stdout.strip())
    print(sbx.exec("python3 -m pytest --version").ok)
"""
_MACHINE_AND_TAGS = """
import os
from packaging.tags import sys_tags
print(os.uname().machine, "py3-none-manylinux_2_17_aarch64" in map(str, sys_tags()))
"""
TEN_LINES_SAY = "0 45\nTrue\n"
_NOTEBOOK = """
from jupyter_client.manager import start_new_kernel
manager, client = start_new_kernel(kernel_name="python3")
for cell in (
    "from paddock import AsyncSandbox, Sandbox; box = Sandbox.create()",
    "box.exec('echo here')",
    "async with AsyncSandbox.create() as other: print((await other.exec('echo there')).stdout)",
    "box.kill()",
):
    said = []
    done = client.execute_interactive(cell, output_hook=lambda message: said.append(message["content"]))["content"]
    assert done["status"] == "ok", said
    print(*(one.get("text") or one.get("data", {}).get("text/plain", "") for one in said))
manager.shutdown_kernel()
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


def build(sources: Path, target: str, dist: Path, **environment: str) -> Path:
    """Build the sdist or a wheel as `make wheels` does."""
    built = run(
        "sh", "-c", f"cd {sources} && exec {sys.executable} -m hatchling build -t {target} -d {dist}", **environment
    )
    if environment and "NoCompiler" in built.stderr:
        pytest.skip(f"{built.stderr.splitlines()[-1]}; make levels installs it")
    assert built.returncode == 0, built.stderr
    (made,) = dist.glob("paddock_sandbox-*.tar.gz" if target == "sdist" else "paddock_sandbox-*.whl")
    return made


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """From a clone, without what a checkout has set up."""
    place = tmp_path_factory.mktemp("clone")
    shutil.copytree(ROOT, place / "clone", ignore=_NOT_CLONED)
    return build(place / "clone", "sdist", place)


@pytest.fixture(scope="module")
def sources(sdist: Path) -> Path:
    """Wheels come from the sdist, as an installer without our wheel makes it."""
    return unpack(sdist, sdist.parent)


def unpack(sdist: Path, place: Path) -> Path:
    assert run("tar", "-xzf", sdist, "-C", place).returncode == 0
    (directory,) = place.glob("paddock_sandbox-*/")
    return directory


@pytest.mark.timeout(300)
def test_the_distribution_is_built_from_a_clone_and_runs_in_an_empty_environment(
    sdist: Path, sources: Path, tmp_path: Path, state_dir: Path
) -> None:
    wheel = build(sources, "wheel", tmp_path)
    assert max(sdist.stat().st_size, wheel.stat().st_size) < _MOST_BYTES
    if shutil.which("cc") is not None:
        holds_the_guest(wheel, platform.machine())

    installer, empty = tmp_path / "installer", tmp_path / "empty"
    for venv, how in ((installer, ()), (empty, ("--without-pip",))):
        assert run(PYTHON, "-m", "venv", *how, venv).returncode == 0
    index(run(installer / "bin" / "pip", "--python", empty / "bin" / "python", "install", "-q", wheel))
    (tmp_path / "ten.py").write_text(TEN_LINES)
    done = run(empty / "bin" / "python", "-W", "error", tmp_path / "ten.py", PADDOCK_STATE_DIR=str(state_dir))
    if "LevelUnavailableError" in done.stderr:
        pytest.skip(done.stderr.splitlines()[-1])
    assert (done.stdout, done.stderr, done.returncode) == (TEN_LINES_SAY, "", 0)
    version = run(empty / "bin" / "paddock", "--version", PADDOCK_STATE_DIR=str(state_dir))
    assert version.stdout.startswith("paddock ")
    assert run(empty / "bin" / "paddock", "daemon", "stop", PADDOCK_STATE_DIR=str(state_dir)).returncode == 0


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_it_works_in_the_cells_of_a_notebook(sources: Path, tmp_path: Path, state_dir: Path) -> None:
    """Of Jupyter's own kernel, whose main thread has a running event loop."""
    place = tmp_path / "notebook"
    assert run(PYTHON, "-m", "venv", place).returncode == 0
    wheel = build(sources, "wheel", tmp_path)
    index(run(place / "bin" / "pip", "install", "-q", wheel, "ipykernel", "jupyter_client"))
    assert run(place / "bin" / "python", "-m", "ipykernel", "install", "--prefix", place).returncode == 0
    where = {"JUPYTER_PATH": str(place / "share" / "jupyter"), "PADDOCK_STATE_DIR": str(state_dir)}
    done = run(place / "bin" / "python", "-c", _NOTEBOOK, **where)
    assert done.returncode == 0, done.stderr
    assert "exit_code=0" in done.stdout
    assert "here" in done.stdout
    assert "there" in done.stdout
    assert run(place / "bin" / "paddock", "daemon", "stop", **where).returncode == 0


@pytest.mark.parametrize("arch", ELF_MACHINES)
def test_a_wheel_is_built_for_either_architecture_on_one_machine(sources: Path, tmp_path: Path, arch: str) -> None:
    wheel = build(sources, "wheel", tmp_path, PADDOCK_WHEEL_ARCH=arch)
    assert wheel.stat().st_size < _MOST_BYTES
    holds_the_guest(wheel, arch)


def test_a_release_is_compiled_by_the_pinned_compiler_or_not_at_all(sources: Path, tmp_path: Path) -> None:
    order = f"cd {sources} && exec {sys.executable} -m hatchling build -t wheel -d {tmp_path}"
    named = {"PADDOCK_WHEEL_ARCH": "aarch64", "PADDOCK_WHEEL_COMPILER": "ziglang"}
    done = run("sh", "-c", order, **named)
    if importlib.util.find_spec("ziglang") is None:
        assert done.returncode
        assert "releases of paddock-guest are compiled by ziglang" in done.stderr
    else:
        assert done.returncode == 0, done.stderr
        holds_the_guest(next(tmp_path.glob("*.whl")), "aarch64")


@pytest.mark.slow
@pytest.mark.parametrize("arch", ELF_MACHINES)
def test_a_wheel_has_the_same_bytes_when_it_is_built_again(sdist: Path, tmp_path: Path, arch: str) -> None:
    """In another directory, and the guest compiled again."""
    digests: set[str] = set()
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        cache = str(tmp_path / name / "cache")
        wheel = build(
            unpack(sdist, tmp_path / name), "wheel", tmp_path / name, PADDOCK_WHEEL_ARCH=arch, XDG_CACHE_HOME=cache
        )
        digests.add(hashlib.sha256(wheel.read_bytes()).hexdigest())
    assert len(digests) == 1


@pytest.mark.slow
@pytest.mark.root
@pytest.mark.timeout(900)
def test_the_wheel_for_aarch64_runs_on_aarch64(sources: Path, tmp_path: Path) -> None:
    """At level `jail`, on a kernel of Debian's, in an emulated machine."""
    if platform.machine() != "x86_64" or aarch64.missing():
        pytest.skip("needs qemu-system-aarch64 and what it boots: make levels, as root, fetches both")
    wheel = build(sources, "wheel", tmp_path, PADDOCK_WHEEL_ARCH="aarch64")
    assert run(PYTHON, "-m", "venv", tmp_path / "installer").returncode == 0
    oldest_first = (f"--platform=manylinux_2_{minor}_aarch64" for minor in range(17, 36))
    where = ("--target", tmp_path / "site", "--only-binary", ":all:", "--python-version", aarch64.python())
    index(run(tmp_path / "installer" / "bin" / "pip", "install", "-q", *where, *oldest_first, wheel))
    # Everything takes twenty times as long there.
    program = _MACHINE_AND_TAGS + TEN_LINES.replace("=120", "=1200").replace("=30", "=300")
    (tmp_path / "machine").mkdir()
    done = aarch64.run(tmp_path / "machine", tmp_path / "site", program)
    assert done == (0, "aarch64 True\n" + TEN_LINES_SAY)


def holds_the_guest(wheel: Path, arch: str) -> None:
    """One guest, of that architecture, which the wheel's name and WHEEL file both have."""
    assert wheel.name.endswith(f"-py3-none-manylinux_2_17_{arch}.musllinux_1_1_{arch}.whl")
    with zipfile.ZipFile(wheel) as archive:
        (guest,) = (name for name in archive.namelist() if name.startswith("paddock/native/"))
        assert guest == f"paddock/native/paddock-guest-{arch}"
        program = archive.read(guest)
        (about,) = (name for name in archive.namelist() if name.endswith("/WHEEL"))
        tags = [line for line in archive.read(about).decode().splitlines() if line.startswith("Tag: ")]
    assert tags == [f"Tag: py3-none-manylinux_2_17_{arch}", f"Tag: py3-none-musllinux_1_1_{arch}"]
    assert program[:4] == b"\x7fELF"
    assert int.from_bytes(program[18:20], "little") == ELF_MACHINES[arch]
    assert len(program) < 150_000
