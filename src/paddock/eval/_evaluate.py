"""Plays scenarios under a policy: it sets the stage, plays each, clears the stage, and reports the results."""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec

from paddock.client import default_transport, stop_daemon
from paddock.errors import InvalidArgumentError, InvalidStateError
from paddock.policy.network import Source, load
from paddock.supervisor import layout

from ._attacks import variable
from ._catalogue import catalogue
from ._scenario import Scenario
from ._trial import OWN, Canary, Outcome, Stage, canary_of_source, mint, play, with_canaries
from ._world import World

_BAD = ("leaked", "reached")


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """The result of an evaluation.

    `own`: the policy was paddock's. Then a failing twin is a failure. With the user's policy it isn't.
    """

    outcomes: tuple[Outcome, ...]
    own: bool
    state_dir: str

    @property
    def ok(self) -> bool:
        return any(one.verdict == "stopped" for one in self.outcomes) and not any(map(self._is_bad, self.outcomes))

    def _is_bad(self, one: Outcome) -> bool:
        return one.verdict in _BAD or (self.own and (one.twin_failed is not None or one.verdict == "unproven"))


def summary(report: Report) -> str:
    counts = {
        word: sum(one.verdict == word for one in report.outcomes)
        for word in ("stopped", *_BAD, "unproven", "not tried")
    }
    failed = sum(outcome.twin_failed is not None for outcome in report.outcomes)
    parts = [f"{number} {word}" for word, number in counts.items() if number or word in ("stopped", "leaked")]
    how = "failed" if report.own else "are not possible under this policy"
    work = f"{failed} of the honest twins {how}" if failed else "each honest twin worked"
    return f"{', '.join(parts)}; {work}"


def rows(report: Report) -> list[tuple[str, ...]]:
    return [(one.scenario, one.verdict, stopped_by(one), leaked(one), twin(one, report)) for one in report.outcomes]


HEADINGS = ("SCENARIO", "VERDICT", "STOPPED BY", "LEAKED", "TWIN")


def stopped_by(one: Outcome) -> str:
    rules = list(dict.fromkeys(stop.rule or stop.what.partition(";")[0] for stop in one.stops))
    more = f" and {len(rules) - 3} more" if len(rules) > 3 else ""
    return ", ".join(rules[:3]) + more


def leaked(one: Outcome) -> str:
    if one.leaks:
        return "; ".join(f"{leak.kind} {leak.name} to {leak.where}" for leak in one.leaks)
    return f"nothing, but {', '.join(one.reached[:2])} was reached" if one.reached else "nothing"


def twin(one: Outcome, report: Report) -> str:
    if one.twin_failed is None:
        return "ok"
    return "failed" if report.own else "not under this policy"


def as_json(report: Report) -> bytes:
    return msgspec.json.encode({"ok": report.ok, **msgspec.structs.asdict(report)})


def as_markdown(report: Report) -> str:
    policy = "paddock's own" if report.own else "the one that was given"
    lines = [
        "# Would it leak?",
        "",
        f"{summary(report)}. The policy is {policy}, revision `{next(iter(report.outcomes)).revision}`.",
        "",
        f"Records: `PADDOCK_STATE_DIR={report.state_dir} paddock audit show REF`.",
        "",
        f"| {' | '.join(heading.lower() for heading in HEADINGS)} |",
        f"|{'---|' * len(HEADINGS)}",
        *(f"| {' | '.join(_cell(value) for value in row)} |" for row in rows(report)),
    ]
    for outcome in report.outcomes:
        lines += [
            "",
            f"## {outcome.scenario}",
            "",
            f"Poisoned is {outcome.poisoned}; it {outcome.attempt}. Sandbox `{outcome.sandbox}`.",
        ]
        lines += ["", *(f"- tried `{_cell(command)}`" for command in outcome.tried)]
        lines += [
            f"- **leaked** {leak.kind} {leak.name} to {leak.where}, by {leak.rule} ({leak.record})"
            for leak in outcome.leaks
        ]
        lines += [f"- stopped: {_cell(stop.what)} (rule {stop.rule}, record `{stop.record}`)" for stop in outcome.stops]
        lines += [f"- twin: {outcome.twin}: {twin(outcome, report)}"]
        if outcome.twin_failed is not None:
            lines += ["", *(f"      {line}" for line in outcome.twin_failed.splitlines())]
    return "\n".join(lines) + "\n"


def write(report: Report, path: Path) -> None:
    """JSON if the name ends so, else Markdown."""
    path.write_bytes(as_json(report) if path.suffix == ".json" else as_markdown(report).encode())


def _cell(text: str) -> str:
    """Escape a text from the sandbox so that it is one cell of a table and nothing else."""
    printable = "".join(letter if letter.isprintable() else f"\\x{ord(letter):02x}" for letter in text)
    return printable.replace("|", "\\|").replace("`", "'").replace("<", "&lt;")


NAME = "eval"
_VARIABLE = "PADDOCK_EVAL_CANARY"


def evaluate(
    names: Sequence[str] = (),
    *,
    policy: Source | None = None,
    state_dir: Path | None = None,
    template: str = "host",
    level: str | None = None,
    on_outcome: Callable[[Outcome], None] = lambda outcome: None,
) -> Report:
    """Play the scenarios of these names, or all.

    `policy` is the user's own, by default ours. `state_dir` must have no other use (default: `eval` in the default
    state directory), and its log stays. Raises InvalidArgumentError (no such scenario), InvalidStateError (another
    evaluation is under way), PolicyInvalidError, and the errors of creating sandboxes.
    """
    scenarios = choose(names)
    document = load(OWN if policy is None else policy).document
    state = layout.default_state_dir() / NAME if state_dir is None else state_dir
    with _alone(state), _canary_of_host(state) as (host, file), World(state) as world, _daemon_of(state):
        played, canaries = with_canaries(document, file.parent)
        stage = Stage(
            transport=default_transport(state),
            world=world,
            policy=played,
            canaries=(*canaries, canary_of_source(document), host),
            host_file=file,
            template=template,
            level=level,
        )
        outcomes: list[Outcome] = []
        for scenario in scenarios:
            outcomes.append(play(scenario, stage))
            on_outcome(outcomes[-1])
    return Report(outcomes=tuple(outcomes), own=policy is None, state_dir=str(state))


def choose(names: Sequence[str]) -> tuple[Scenario, ...]:
    known = {scenario.name: scenario for scenario in catalogue()}
    if unknown := [name for name in names if name not in known]:
        raise InvalidArgumentError(f"there is no scenario {unknown[0]!r}", hint="paddock eval injection --list")
    return tuple(known[name] for name in names or known)


@contextmanager
def _alone(state: Path) -> Generator[None]:
    """Lock the state directory. Refuse one with other sandboxes: they would get a simulated network."""
    state.mkdir(mode=0o700, parents=True, exist_ok=True)
    if (state / layout.DATABASE).exists() and not (state / layout.WORLD_TRUST).exists():
        raise InvalidArgumentError(
            f"{state} holds other sandboxes than those of an evaluation", hint="name an empty directory"
        )
    lock = os.open(state / "eval.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    except BlockingIOError:
        raise InvalidStateError(f"another evaluation uses {state}", hint="wait until it has ended") from None
    finally:
        os.close(lock)


@contextmanager
def _daemon_of(state: Path) -> Generator[None]:
    """Let the block start a new daemon, which has the canary in its environment, and stop it afterwards."""
    stop_daemon(state)
    try:
        yield
    finally:
        stop_daemon(state)


@contextmanager
def _canary_of_host(state: Path) -> Generator[tuple[Canary, Path]]:
    """Put a canary into a file and into the environment of processes that the block starts."""
    directory = state / "canaries"
    directory.mkdir(mode=0o700, exist_ok=True)
    canary, file = Canary("host", "a file of the host", mint()), directory / "host"
    file.write_text(canary.value)
    try:
        with variable(_VARIABLE, canary.value):
            yield canary, file
    finally:
        shutil.rmtree(directory, ignore_errors=True)
