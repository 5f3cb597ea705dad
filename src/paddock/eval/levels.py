"""Compares levels in turns, with the same programs, under the same attacks.

The costs are the times of creation and deletion, and of work inside relative to the same work outside.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import msgspec

from paddock.client import Sandbox, Transport, default_transport
from paddock.errors import InvalidArgumentError, LevelUnavailableError, PaddockError
from paddock.model import Diagnose, Diagnosis, Level
from paddock.supervisor import layout

from ._attacks import Verdict, attack, bait

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
    """A measured figure. `values` are in turns with the ones of other levels. Without any, `why` gives the reason."""

    name: str
    unit: str
    values: tuple[float, ...] = ()
    why: str = ""

    @property
    def median(self) -> float | None:
        return statistics.median(self.values) if self.values else None


class Measurements:
    """The measurements of one level in progress. It doesn't repeat a failed one, and keeps the reason."""

    def __init__(self, create: Callable[[], Sandbox]) -> None:
        self.create = create
        self._values: dict[str, list[float]] = {}
        self._why: dict[str, str] = {}

    def life(self) -> None:
        """One sandbox from its making to its end."""
        start = time.perf_counter()
        sandbox = self.create()
        try:
            self._keep("create", time.perf_counter() - start)
            self._timed("first exec", lambda: _true(sandbox))
            for _ in range(WARM):
                self._timed("exec", lambda: _true(sandbox))
            self._timed("fork", lambda: self._fork(sandbox))
            self._timed("pause", sandbox.pause)
            self._timed("resume", sandbox.resume)
            self._timed("file in", lambda: sandbox.filesystem.write("/tmp/file", bytes(FILE_MIB << 20)))  # noqa: S108 - inside
            self._timed("file out", lambda: sandbox.filesystem.read("/tmp/file"))  # noqa: S108
            start = time.perf_counter()
        finally:
            sandbox.kill()
        self._keep("kill", time.perf_counter() - start)

    def work(self, name: str, outside_seconds: float) -> None:
        """Run one program of `WORK`, and compare its time with the one outside."""
        argv = ["python3", "-I", "-S", "-c", _CLOCK.format(WORK[name])]
        try:
            with self.create() as sandbox:
                done = sandbox.exec(argv, check=True, timeout_seconds=_SECONDS)
        except PaddockError as error:
            self._why[name] = str(error)
        else:
            self._values.setdefault(name, []).append(float(done.stdout) / outside_seconds)

    def figures(self) -> tuple[Figure, ...]:
        return tuple(
            Figure(name=name, unit=_unit(name), values=tuple(self._values.get(name, ())), why=self._why.get(name, ""))
            for name in dict.fromkeys([*self._values, *self._why])
        )

    def _fork(self, sandbox: Sandbox) -> None:
        """Fork, and run a command in the child."""
        with sandbox.fork() as child:
            _true(child)

    def _timed(self, name: str, act: Callable[[], object]) -> None:
        if name in self._why:
            return
        start = time.perf_counter()
        try:
            act()
        except PaddockError as error:
            self._why[name] = str(error)
        else:
            self._keep(name, time.perf_counter() - start)

    def _keep(self, name: str, seconds: float) -> None:
        value = seconds * 1000 if _unit(name) == "ms" else (FILE_MIB << 20) / 1e6 / seconds
        self._values.setdefault(name, []).append(value)


def _unit(name: str) -> str:
    return "MB/s" if name.startswith("file ") else "x" if name in WORK else "ms"


def outside(name: str, directory: str) -> float:
    """Seconds of the same work without a sandbox."""
    python = "/usr/bin/python3" if os.access("/usr/bin/python3", os.X_OK) else sys.executable
    argv = [python, "-I", "-S", "-c", _CLOCK.format(WORK[name])]
    return float(subprocess.run(argv, cwd=directory, capture_output=True, check=True).stdout)


def _true(sandbox: Sandbox) -> None:
    sandbox.exec(["true"], check=True, timeout_seconds=_SECONDS)


ROUNDS = 5
_WORK_ROUNDS = 3
_TTL_SECONDS = 1800.0
_RULING = (
    *("/run/docker.sock", "/var/run/docker.sock", "/run/podman/podman.sock", "/run/containerd/containerd.sock"),
    *("/run/dbus/system_bus_socket", "/run/systemd/private"),
)


class LevelResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result of one level. `detail`: the technology of its isolation."""

    level: str
    detail: str
    figures: tuple[Figure, ...]
    attacks: tuple[Verdict, ...]

    @property
    def through(self) -> tuple[str, ...]:
        return tuple(one.attack for one in self.attacks if one.verdict == "through")


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """`absent`: levels that this machine has not got, and why. `load` is that of the machine before it began."""

    kernel: str
    processors: int
    load: float
    rounds: int
    levels: tuple[LevelResult, ...]
    absent: dict[str, str]


def compare(
    names: Sequence[str] = (),
    *,
    rounds: int = ROUNDS,
    template: str = "host",
    transport: Transport | None = None,
    on_step: Callable[[str], None] = lambda text: None,
) -> Comparison:
    """Compare the levels of these names, or all isolating levels of this machine, weakest first.

    Raises InvalidArgumentError (no such level, rounds), LevelUnavailableError (a level of `names` is missing), and the
    errors of creating sandboxes.
    """
    if rounds < 1:
        raise InvalidArgumentError(f"rounds={rounds} must be 1 or more", field="rounds")
    transport = transport or default_transport()
    diagnosis = transport.perform(Diagnose())
    levels, absent = _choose(names, diagnosis)
    load = os.getloadavg()[0]
    taken = {
        level: Measurements(
            partial(Sandbox.create, template, level=level, ttl_seconds=_TTL_SECONDS, transport=transport)
        )
        for level in levels
    }
    for level, one in taken.items():
        on_step(f"{level}: a first sandbox")  # which may have to make a template
        one.create().kill()
    for number in range(rounds):
        on_step(f"lives, round {number + 1} of {rounds}")
        for one in taken.values():
            one.life()
    with tempfile.TemporaryDirectory(prefix="paddock-bench-") as scratch:
        for name in WORK:
            on_step(name)
            for _ in range(min(rounds, _WORK_ROUNDS)):
                beside = outside(name, scratch)
                for one in taken.values():
                    one.work(name, beside)
    state, results = Path(diagnosis.state_dir), list[LevelResult]()
    sockets = [state / layout.SUPERVISOR_SOCKET, state / layout.GATEWAY_SOCKET, *map(Path, _RULING)]
    detail = {report.level: report.detail for report in diagnosis.levels}
    for level, one in taken.items():
        on_step(f"{level}: attacks")
        with bait(sockets) as host, one.create() as sandbox:
            verdicts = attack(sandbox, host)
        results.append(LevelResult(level=level, detail=detail.get(level, ""), figures=one.figures(), attacks=verdicts))
    return Comparison(
        kernel=os.uname().release,
        processors=os.cpu_count() or 1,
        load=load,
        rounds=rounds,
        levels=tuple(results),
        absent=absent,
    )


def _choose(names: Sequence[str], diagnosis: Diagnosis) -> tuple[tuple[str, ...], dict[str, str]]:
    known = {report.level: report for report in reversed(diagnosis.levels)}
    for name in names:
        if name not in set(Level):
            raise InvalidArgumentError(f"no level {name!r}: there are {', '.join(Level)}", hint="paddock doctor")
        if name != Level.PROCESS and (name not in known or known[name].status == "missing"):
            why = known[name].detail if name in known else "no backend of that level is installed"
            raise LevelUnavailableError(f"level {name!r} is not available here: {why}", hint="paddock doctor")
    absent = {name: one.detail for name, one in known.items() if one.status == "missing"}
    return tuple(dict.fromkeys(names)) or tuple(name for name in known if name not in absent), absent


FORMATS = ("json", "md")


def headings(found: Comparison) -> tuple[str, ...]:
    return ("", *(level.level.upper() for level in found.levels))


def rows(found: Comparison) -> list[tuple[str, ...]]:
    """Return a line for each figure, and the last for the attacks."""
    taken = {figure.name for level in found.levels for figure in level.figures}
    lines = [(_label(name), *(_cell(one, name) for one in found.levels)) for name in ORDER if name in taken]
    return [*lines, ("attacks that got through", *(_contained(one) for one in found.levels))]


def notes(found: Comparison) -> list[str]:
    """Return the remarks that don't fit into the table."""
    notes = [f"{one.level}: {one.detail}" for one in found.levels if one.detail]
    for one in found.levels:
        notes += [f"{one.level}: no {figure.name}: {figure.why}" for figure in one.figures if figure.why]
        if one.through:
            notes.append(f"{one.level}: got through: {', '.join(one.through)}")
        notes += [f"{one.level}: not tried: {v.attack}: {v.why}" for v in one.attacks if v.verdict == "not tried"]
    notes += [f"{level} is not here: {why}" for level, why in found.absent.items()]
    notes.append(
        f"medians of {found.rounds} in turns on {found.processors} processors beside a load of {found.load:.1f}, "
        f"Linux {found.kernel}; x: times what it takes outside; attacks are made by root inside where there is one"
    )
    return notes


def as_json(found: Comparison) -> bytes:
    return msgspec.json.format(msgspec.json.encode(found))


def as_markdown(found: Comparison) -> str:
    head = headings(found)
    lines = [head, ("---",) * len(head), *rows(found)]
    table = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    return f"# Levels\n\n{table}\n\n" + "".join(f"- {note}\n" for note in notes(found))


def write(found: Comparison, file: Path) -> None:
    """JSON or Markdown, by its name. InvalidArgumentError."""
    file.write_text(as_json(found).decode() if check_name(file) == "json" else as_markdown(found))


def check_name(file: Path) -> str:
    kind = file.suffix.removeprefix(".")
    if kind not in FORMATS:
        raise InvalidArgumentError(
            f"{file} is not the name of a report", hint=f"end it in {', '.join('.' + k for k in FORMATS)}"
        )
    return kind


def _label(name: str) -> str:
    return f"{name} ({'x outside' if name in WORK else _unit(name)})"


def _cell(one: LevelResult, name: str) -> str:
    value = next((figure.median for figure in one.figures if figure.name == name), None)
    if value is None:
        return "-"
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def _contained(one: LevelResult) -> str:
    tried: Sequence[object] = [verdict for verdict in one.attacks if verdict.verdict != "not tried"]
    return f"{len(one.through)} of {len(tried)}"
