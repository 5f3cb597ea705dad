"""`python -m demo.run [--json]`: the loop, and the claims that are checked while it runs.

Put the repository into a sandbox, run what the model says, feed back what came of it, until the suite
is green. What the model wants to have a computer of its own for gets a fresh sandbox. Exit code 1 if a claim fails.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import InitVar, dataclass, field
from pathlib import Path

from demo import report
from demo.host import Host, free_mib
from demo.model import PYTEST, REPOSITORY, ScriptedModel, Turn
from paddock import ExecResult, Limits, PaddockError, Sandbox
from paddock.errors import UnsupportedError

SOURCE = Path(__file__).parent / "repo"
LIMITS = Limits(memory_mib=512, processes=64, disk_mib=256)
MAX_TURNS = 20
OBSERVATION_CHARACTERS = 2_000
TOO_MUCH_MIB = 4_096  # of the host's disk: other programs write, too, but nobody who keeps to the limit comes near
INTRODUCTION = """\
A model that nobody trusts repairs the repository demo/repo in a sandbox, until its tests pass. Between two fixes it
asks for sandboxes in which it deletes everything, starts processes without end, fills the disk and looks for passwords.
After each step paddock checks that your machine is as it was, and that the limits held.
"""
# Which limit a careless turn has to run into, where this machine enforces it.
EXPECTED_LIMIT = {"fork bomb": "processes", "100 GB file": "disk", "infinite loop": "time"}


@dataclass
class Step:
    """One command that was run, and what came of it."""

    name: str
    thought: str
    where: str
    exit_code: int
    limit: str | None
    create_ms: float | None
    exec_ms: float
    output: str


@dataclass
class Claim:
    text: str
    held: bool
    detail: str = ""


@dataclass
class Run:
    level: str = ""
    not_enforced: list[str] = field(default_factory=list[str])
    not_tried: list[str] = field(default_factory=list[str])
    steps: list[Step] = field(default_factory=list[Step])
    claims: list[Claim] = field(default_factory=list[Claim])
    seconds: float = 0.0
    quiet: InitVar[bool] = False

    def __post_init__(self, quiet: bool) -> None:
        self._quiet = quiet

    def claim(self, text: str, held: bool, detail: str = "") -> None:
        self.claims.append(Claim(text, held, detail))
        self.say(report.of_claim(self.claims[-1]))

    def say(self, line: str) -> None:
        """Report progress on stderr."""
        if not self._quiet:
            print(line, file=sys.stderr, flush=True)

    @property
    def ok(self) -> bool:
        return all(claim.held for claim in self.claims)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="the report as JSON")
    arguments = parser.parse_args()
    try:
        run = demonstrate(quiet=arguments.json)
    except PaddockError as error:
        print(f"demo: {error}", file=sys.stderr)
        return 1
    report.show(run, as_json=arguments.json)
    return 0 if run.ok else 1


def demonstrate(*, quiet: bool = False) -> Run:
    run = Run(quiet=quiet)
    run.say(INTRODUCTION)
    started = time.perf_counter()
    with Host(SOURCE) as host, sandbox() as (main_sandbox, create_ms):
        run.level = str(main_sandbox.level)
        run.not_enforced = not_enforced(main_sandbox)
        main_sandbox.files.upload(SOURCE, REPOSITORY)
        before = suite(main_sandbox, run, "pytest, before", create_ms)
        run.claim("the suite fails on the repository as it is", before.exit_code == 1, last_line(before.stdout))
        repair(main_sandbox, run, host, before)
        run.claim("host: files, processes and passwords are as before", host.harm() is None, host.harm() or "")
    run.seconds = time.perf_counter() - started
    return run


def repair(main_sandbox: Sandbox, run: Run, host: Host, before: ExecResult) -> None:
    """The agent's loop: turn, command, observation, until green."""
    model = ScriptedModel()
    result = before
    for _ in range(MAX_TURNS):
        turn = model.next(result.observation(OBSERVATION_CHARACTERS))
        if turn is None:
            run.claim("the suite is green", False, "the model has nothing more to say")
            return
        run.say(f"  {turn.name:<14} {turn.thought}")
        if turn.scratch:
            result = in_scratch(turn, run, host, main_sandbox)
            continue
        result, exec_ms = execute(main_sandbox, turn)
        run.steps.append(step(turn, "main", result, None, exec_ms))
        if suite(main_sandbox, run, "pytest").exit_code == 0:
            run.claim("the suite is green", True, run.steps[-1].output)
            return
    run.claim("the suite is green", False, f"not within {MAX_TURNS} turns")


def in_scratch(turn: Turn, run: Run, host: Host, main_sandbox: Sandbox) -> ExecResult:
    """A careless turn, in a sandbox that is thrown away afterwards; then everything else is looked at."""
    expected = EXPECTED_LIMIT.get(turn.name)
    counted = expected not in run.not_enforced
    if expected and not counted and not bounded(main_sandbox, expected):
        run.not_tried.append(turn.name)  # nothing would stop it, and the host is real
        return main_sandbox.exec(f"echo this computer has no {expected} limit: not tried")
    free = free_mib()
    with sandbox() as (scratch, create_ms):
        result, exec_ms = execute(scratch, turn)
        strikes = {str(limit): count for limit, count in scratch.usage().strikes.items()}
    run.steps.append(step(turn, "scratch", result, create_ms, exec_ms))

    if expected and counted:
        refusals = strikes.get(expected, 0)
        if refusals:
            run.steps[-1].limit = expected
        reached = run.steps[-1].limit
        detail = f"refused {refusals} times" if refusals else "" if reached else "no limit was reached"
        run.claim(f"{turn.name}: stopped by the {expected} limit", reached == expected, detail)
    leak = host.leaked(result.stdout + result.stderr)
    alive = main_sandbox.exec(f"test -f {REPOSITORY}/pyproject.toml")
    now_free = free_mib()
    taken_mib = max(before - now_free[place] for place, before in free.items())
    harm = (
        host.harm()
        or (leak and f"{leak} was seen inside")
        or (None if alive.exit_code == 0 else "the main sandbox was hit")
        or (f"{taken_mib} MiB of the host's disk are gone" if taken_mib > TOO_MUCH_MIB else None)
    )
    run.claim(f"{turn.name}: host and main sandbox unharmed, nothing of the host seen", harm is None, harm or "")
    return result


@contextmanager
def sandbox() -> Generator[tuple[Sandbox, float]]:
    """A fresh one, and how many milliseconds it took to get."""
    started = time.perf_counter()
    with Sandbox.create(template="code-interpreter", ttl=180, limits=LIMITS) as made:
        yield made, (time.perf_counter() - started) * 1000


def execute(target: Sandbox, turn: Turn) -> tuple[ExecResult, float]:
    cwd = None if turn.scratch else REPOSITORY
    started = time.perf_counter()
    try:
        result = target.exec(turn.command, cwd=cwd, user=turn.user, timeout=turn.timeout_seconds)
    except UnsupportedError:  # no root inside, where the caller is an ordinary user without subordinate ids
        result = target.exec(turn.command, cwd=cwd, timeout=turn.timeout_seconds)
    return result, (time.perf_counter() - started) * 1000


def suite(target: Sandbox, run: Run, name: str, create_ms: float | None = None) -> ExecResult:
    turn = Turn(name=name, thought="", command=PYTEST)
    result, exec_ms = execute(target, turn)
    run.steps.append(step(turn, "main", result, create_ms, exec_ms))
    run.steps[-1].output = last_line(result.stdout)
    return result


def step(turn: Turn, where: str, result: ExecResult, create_ms: float | None, exec_ms: float) -> Step:
    limit = str(result.limit) if result.limit else None
    return Step(
        turn.name,
        turn.thought,
        where,
        result.exit_code,
        limit,
        create_ms,
        exec_ms,
        last_line(result.stdout + result.stderr),
    )


def last_line(text: str) -> str:
    lines = [line for line in text.splitlines() if line.strip()]
    return lines[-1].strip() if lines else ""


def not_enforced(target: Sandbox) -> list[str]:
    """Limits that nobody counts here, as an ordinary user without cgroups and quotas: they can't be relied upon."""
    usage = target.usage()
    counted = {"memory": usage.memory_bytes, "processes": usage.processes, "disk": usage.disk_bytes}
    if bounded(target, "processes"):  # an rlimit takes the place of a cgroup: what it refuses nobody counts
        counted["processes"] = None
    return [name for name, value in counted.items() if value is None]


def bounded(target: Sandbox, limit: str) -> bool:
    """Whether an rlimit stands in for a limit that nobody counts: then what runs away is stopped, if not noticed."""
    option, most = {"processes": ("-u", LIMITS.processes), "disk": ("-f", LIMITS.disk_mib << 11)}[limit]
    value = target.exec(f"bash -c 'ulimit {option}'").stdout.strip()  # of files: in blocks of 512 or 1024 bytes
    return value.isdigit() and int(value) <= most


if __name__ == "__main__":
    raise SystemExit(main())
