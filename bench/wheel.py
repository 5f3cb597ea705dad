"""`pip install` of paddock itself: its wheel and all that it depends on, from files of this machine into an empty
environment.

pip compiles every module as it installs. `--no-compile`, and uv, leave that to the first start.
"""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from bench.contest import Contender, contest
from bench.plan import Plan
from bench.report import Section
from bench.worker import TOTAL

_ROOT = Path(__file__).parent.parent
_PYTHON = "/usr/bin/python3"
_PIP = ("{python}", "-m", "pip", "install", "--quiet", "--no-input", "--no-index", "--find-links", "{files}")
_WHAT = ("paddock-sandbox", "--pre")
WAYS = {
    "pip install": (*_PIP, *_WHAT),
    "pip install --no-compile": (*_PIP, "--no-compile", *_WHAT),
    "uv pip install": (
        *("{uv}", "pip", "install", "--quiet", "--python", "{python}", "--no-index", "--find-links", "{files}"),
        *("paddock-sandbox", "--prerelease=allow"),
    ),
}


class Install:
    """Into a new environment each time. `files` holds the wheels."""

    def __init__(self, files: str, way: str) -> None:
        uv = shutil.which("uv") or str(_ROOT / ".tools" / "bin" / "uv")
        if way.startswith("uv") and not os.access(uv, os.X_OK):
            raise RuntimeError("uv is not installed")
        self._place = Path(tempfile.mkdtemp(prefix="pb-", dir="/var/tmp"))
        subprocess.run([_PYTHON, "-m", "venv", self._place / "empty"], check=True, capture_output=True)
        words = {"uv": uv, "files": files, "python": self._place / "v" / "bin" / "python"}
        self._argv = [word.format(**words) for word in WAYS[way]]

    def once(self) -> dict[str, float]:
        shutil.copytree(self._place / "empty", self._place / "v", symlinks=True)
        environment = {**clean(), "UV_CACHE_DIR": str(self._place / "cache")}
        before, start = computing(), time.perf_counter()
        done = subprocess.run(self._argv, env=environment, capture_output=True, text=True, check=False)
        wall, used = time.perf_counter() - start, computing() - before
        if done.returncode:
            raise RuntimeError(done.stderr.strip()[-300:])
        shutil.rmtree(self._place / "v")
        return {TOTAL: wall, "computing": used}

    def close(self) -> None:
        shutil.rmtree(self._place, ignore_errors=True)


def computing() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def clean() -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PIP_", "PYTHON", "UV_"))}
    return {**kept, "PIP_CONFIG_FILE": os.devnull, "PIP_DISABLE_PIP_VERSION_CHECK": "1"}


def fetch(files: Path) -> int:
    """Build the wheel, and download what it depends on from pip's index. Return the wheel's size."""
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", files]
    subprocess.run(build, cwd=_ROOT, check=True, capture_output=True)
    (wheel,) = files.glob("paddock_sandbox-*.whl")
    subprocess.run([_PYTHON, "-m", "venv", files / "pip"], check=True, capture_output=True)
    download = [files / "pip" / "bin" / "pip", "download", "--quiet", "--dest", files, wheel]
    subprocess.run(download, check=True, capture_output=True)
    return wheel.stat().st_size


def measure(plan: Plan) -> list[Section]:
    section = Section(
        "wheel", "pip install of paddock and all that it depends on, from files, into an empty environment"
    )
    with tempfile.TemporaryDirectory(prefix="pb-", dir="/var/tmp") as directory:
        size = fetch(Path(directory))
        ways = [Contender(way, "bench.wheel:Install", {"files": directory, "way": way}) for way in WAYS]
        records = contest(ways, rounds=plan.rounds(5), block=1)
    for record in records.values():
        section.add(record)
    section.notes.append(f"the wheel has {size / 1e6:.1f} MB")
    return [section]
