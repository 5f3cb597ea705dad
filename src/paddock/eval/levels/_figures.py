"""What a level costs: its sandboxes' lives, and work inside beside the same work outside."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable

import msgspec

from paddock.client import Sandbox
from paddock.errors import PaddockError

FILE_MIB = 32
WARM = 5
_SECONDS = 300.0
_CLOCK = "import time; start = time.perf_counter()\n{}\nprint(time.perf_counter() - start)"
# Each a tenth of a second or so outside.
WORK = {
    "computing": """
import hashlib, json
sum(n * n % 7 for n in range(400_000))
hashlib.sha256(bytes(20_000_000)).hexdigest()
json.loads(json.dumps([{"n": n, "text": "x" * 20} for n in range(10_000)]))
""",
    "system calls": """
import os
for _ in range(50_000): os.stat("/")
""",
    "processes": """
import subprocess
for _ in range(30): subprocess.run(["/bin/true"], check=True)
""",
    "files": """
import os
os.mkdir("tree")
for n in range(500):
    with open(f"tree/{n}", "wb") as file: file.write(b"x" * 4096)
for entry in os.scandir("tree"):
    with open(entry.path, "rb") as file: file.read()
for n in range(500): os.unlink(f"tree/{n}")
os.rmdir("tree")
""",
}


LIFE = ("create", "first exec", "exec", "fork", "pause", "resume", "kill", "file in", "file out")
ORDER = (*LIFE, *WORK)


class Figure(msgspec.Struct, frozen=True, kw_only=True):
    """`values` in turns with those of other levels; without any, `why`."""

    name: str
    unit: str
    values: tuple[float, ...] = ()
    why: str = ""

    @property
    def median(self) -> float | None:
        return statistics.median(self.values) if self.values else None


class Taken:
    """The figures of one level while they are taken. What fails is not tried again, and says why."""

    def __init__(self, create: Callable[[], Sandbox]) -> None:
        self._create = create
        self._values: dict[tuple[str, str], list[float]] = {}
        self._why: dict[tuple[str, str], str] = {}

    def life(self) -> None:
        """One sandbox from its making to its end."""
        start = time.perf_counter()
        sandbox = self._create()
        try:
            self._keep("create", "ms", time.perf_counter() - start)
            self._timed("first exec", lambda: _true(sandbox))
            for _ in range(WARM):
                self._timed("exec", lambda: _true(sandbox))
            self._timed("fork", lambda: self._fork(sandbox))
            self._timed("pause", sandbox.pause)
            self._timed("resume", sandbox.resume)
            self._timed("file in", lambda: sandbox.filesystem.write("/tmp/file", bytes(FILE_MIB << 20)), "MB/s")  # noqa: S108 - inside
            self._timed("file out", lambda: sandbox.filesystem.read("/tmp/file"), "MB/s")  # noqa: S108
            start = time.perf_counter()
        finally:
            sandbox.kill()
        self._keep("kill", "ms", time.perf_counter() - start)

    def work(self, name: str, outside_seconds: float) -> None:
        """Some of `WORK`, beside what it took outside."""
        argv = ["python3", "-I", "-S", "-c", _CLOCK.format(WORK[name])]
        try:
            with self._create() as sandbox:
                done = sandbox.exec(argv, check=True, timeout_seconds=_SECONDS)
        except PaddockError as error:
            self._why[name, "x"] = str(error)
        else:
            self._values.setdefault((name, "x"), []).append(float(done.stdout) / outside_seconds)

    def figures(self) -> tuple[Figure, ...]:
        keys = dict.fromkeys([*self._values, *self._why])
        return tuple(
            Figure(
                name=name,
                unit=unit,
                values=tuple(self._values.get((name, unit), ())),
                why=self._why.get((name, unit), ""),
            )
            for name, unit in keys
        )

    def _fork(self, sandbox: Sandbox) -> None:
        """Until the child has done something."""
        child = sandbox.fork()
        try:
            _true(child)
        finally:
            child.kill()

    def _timed(self, name: str, act: Callable[[], object], unit: str = "ms") -> None:
        if (name, unit) in self._why:
            return
        start = time.perf_counter()
        try:
            act()
        except PaddockError as error:
            self._why[name, unit] = str(error)
        else:
            self._keep(name, unit, time.perf_counter() - start)

    def _keep(self, name: str, unit: str, seconds: float) -> None:
        value = seconds * 1000 if unit == "ms" else (FILE_MIB << 20) / 1e6 / seconds
        self._values.setdefault((name, unit), []).append(value)


def outside(name: str, directory: str) -> float:
    """Seconds of the same work without a sandbox."""
    python = "/usr/bin/python3" if os.access("/usr/bin/python3", os.X_OK) else sys.executable
    argv = [python, "-I", "-S", "-c", _CLOCK.format(WORK[name])]
    return float(subprocess.run(argv, cwd=directory, capture_output=True, check=True).stdout)


def _true(sandbox: Sandbox) -> None:
    sandbox.exec(["true"], check=True, timeout_seconds=_SECONDS)
