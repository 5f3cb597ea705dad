"""A new task on a repository that is cached, until `git status` has answered inside; beside clones of a mirror.

A clone writes all files, and is as slow as the disk is busy: so it is made in memory, too, and what counts as well is
the processor time of both.
"""

from __future__ import annotations

import itertools
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
from pathlib import Path

from bench.contest import Contender, contest
from bench.plan import Plan
from bench.report import OUT, Section
from bench.worker import TOTAL
from paddock.client import default_transport
from paddock.model import CreateSandbox, DeleteWorkspace, ExecSpec, KillSandbox, OpenWorkspace, RunExec, SandboxSpec

FEW, MANY = 3_000, 8_000
_PROJECTS = ("django==5.1.4", "sympy==1.13.3")  # 6,800 and 2,000 files
_GIT = ("git", "-c", "user.name=bench", "-c", "user.email=bench@example.org", "-c", "gc.auto=0")
_CLONES = (
    ("git clone --local, status", "/var/tmp", ["--local"]),
    ("git clone --shared, status", "/var/tmp", ["--shared"]),
    ("git clone --shared into memory, status", "/dev/shm", ["--shared"]),
)
_PAUSE_SECONDS = 1.0  # tasks come now and then: what is made ahead is there by then
_STATUS = ("git", "status", "--porcelain")


class Task:
    """A workspace for a new task, a sandbox over it, its first `git status`; the repository was used before."""

    def __init__(self, mirror: str) -> None:
        self._url, self._transport = f"file://{mirror}", default_transport()
        self._numbers = itertools.count()
        self.once()

    def once(self) -> dict[str, float]:
        time.sleep(_PAUSE_SECONDS)
        name = f"task{next(self._numbers)}"
        perform = self._transport.perform
        marks = [time.perf_counter()]
        perform(OpenWorkspace(name=name, url=self._url, branch="work", ref="main", max_age_seconds=3600))
        marks.append(time.perf_counter())
        sandbox = perform(CreateSandbox(spec=SandboxSpec(workspace=name)))
        marks.append(time.perf_counter())
        done = perform(RunExec(sandbox=sandbox.id, spec=ExecSpec(argv=_STATUS, cwd="/workspace")))
        marks.append(time.perf_counter())
        if done.exit_code or done.stdout:
            raise RuntimeError(f"git status: {done.exit_code} {done.stdout[:100]} {done.stderr[:200]}")
        perform(KillSandbox(sandbox=sandbox.id))
        perform(DeleteWorkspace(workspace=name, discard=True))
        steps = [after - before for before, after in itertools.pairwise(marks)]
        return {TOTAL: marks[-1] - marks[0], "workspace": steps[0], "sandbox": steps[1], "git status": steps[2]}

    def close(self) -> None: ...


class Clone:
    """`git clone` of the mirror, which links its objects or (`--shared`) borrows them, and `git status` in it."""

    def __init__(self, mirror: str, place: str, options: list[str]) -> None:
        self._command = ["git", "clone", "--quiet", *options, mirror]
        self._place = Path(tempfile.mkdtemp(prefix="pb-", dir=place))

    def once(self) -> dict[str, float]:
        target = self._place / "clone"
        marks = [time.perf_counter()]
        subprocess.run([*self._command, str(target)], check=True, capture_output=True)
        marks.append(time.perf_counter())
        subprocess.run(_STATUS, cwd=target, check=True, capture_output=True)
        marks.append(time.perf_counter())
        shutil.rmtree(target)
        return {TOTAL: marks[2] - marks[0], "git clone": marks[1] - marks[0], "git status": marks[2] - marks[1]}

    def close(self) -> None:
        shutil.rmtree(self._place)


def measure(plan: Plan) -> list[Section]:
    sections: list[Section] = []
    for most in (FEW, MANY):
        mirror, files = repository(most)
        section = Section(f"checkout-{most}", f"a new task on a cached repository of {files} files, until git status")
        at = {"mirror": str(mirror)}
        contenders = [
            Contender("paddock: workspace, sandbox, status", "bench.checkout:Task", at, state=True, block=5),
            *(
                Contender(name, "bench.checkout:Clone", {**at, "place": place, "options": options}, block=2)
                for name, place, options in _CLONES
            ),
        ]
        task, *clones = contest(contenders, rounds=plan.rounds(3), block=5).values()
        for record in (task, *clones):
            section.add(record)
            section.add_cpu(record)
        section.compare(task, clones)
        sections.append(section)
    return sections


def repository(most: int) -> tuple[Path, int]:
    """A mirror of `most` files of real projects, or all there are, with a history of two commits; how many it has."""
    mirror = OUT / "checkout" / f"{most}.git"
    if not mirror.exists():
        with tempfile.TemporaryDirectory(prefix="pb-", dir="/var/tmp") as scratch:
            work = Path(scratch) / "work"
            _git("init", "--quiet", "--initial-branch=main", str(work), at=Path(scratch))
            files = _unpack(work, most)
            _git("add", "--", files[0], at=work)
            _git("commit", "--quiet", "-m", "one", at=work)
            _git("add", "--all", at=work)
            _git("commit", "--quiet", "-m", "all", at=work)
            unfinished = mirror.with_suffix(f".{os.getpid()}")
            _git("clone", "--quiet", "--bare", str(work), str(unfinished), at=work)
            unfinished.rename(mirror)
    listed = _git("ls-tree", "-r", "--name-only", "-z", "main", at=mirror)
    return mirror, listed.count("\0")


def _unpack(work: Path, most: int) -> list[str]:
    left, names = most, list[str]()
    for archive in _archives():
        with tarfile.open(archive) as tar:
            members = sorted((one for one in tar if one.isfile()), key=lambda one: one.name)
            for one in members[:left]:
                content = tar.extractfile(one)
                assert content is not None
                place = work / one.name
                place.parent.mkdir(parents=True, exist_ok=True)
                place.write_bytes(content.read())
                names.append(one.name)
            left = most - len(names)
    return names


def _archives() -> list[Path]:
    """The source distributions, by pip from wherever it gets its packages."""
    found: list[Path] = []
    for project in _PROJECTS:
        folder = OUT / "checkout" / project.replace("==", "-")
        if not folder.exists():
            unfinished = folder.with_name(f"{folder.name}.{os.getpid()}")
            argv = [_python_with_pip(), "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary=:all:"]
            subprocess.run([*argv, "--dest", str(unfinished), project], check=True)
            unfinished.rename(folder)
        found += sorted(folder.glob("*.tar.gz"))
    return found


def _python_with_pip() -> str:
    for python in (sys.executable, "/usr/bin/python3", "python3"):
        if subprocess.run([python, "-m", "pip", "--version"], capture_output=True, check=False).returncode == 0:
            return python
    raise RuntimeError("no Python here has pip to fetch a source distribution with")


def _git(*arguments: str, at: Path) -> str:
    done = subprocess.run([*_GIT, *arguments], cwd=at, check=True, capture_output=True)
    return done.stdout.decode(errors="surrogateescape")
