"""Scenarios under a policy: the stage is set, each is played, the stage is cleared away."""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from pathlib import Path

from paddock.client import default_transport, stop_daemon
from paddock.errors import InvalidArgument, InvalidState
from paddock.keeper import layout
from paddock.policy.egress import load
from paddock.policy.egress._load import Source

from ._canaries import Canary, mint
from ._policy import OWN, with_canaries
from ._report import Report
from ._scenario import Scenario
from ._trial import Outcome, Stage, play
from ._world import World
from .scenarios import catalogue

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
    """Plays the scenarios of these names, or all. `policy`: the user's own; without one ours. `state_dir` is one that
    nobody else uses (default: `eval` in this machine's), whose log stays.

    InvalidArgument (no such scenario), InvalidState (another evaluation is under way), PolicyInvalid, and whatever
    keeps sandboxes from being made.
    """
    scenarios = choose(names)
    document = load(OWN if policy is None else policy).document
    state = layout.default_state_dir() / NAME if state_dir is None else state_dir
    with _alone(state), _canary_of_host(state) as (host, file), World(state) as world, _daemon_of(state):
        loaded = with_canaries(document, file.parent)
        source = Canary("source", "src/pricing.py", mint(), loaded.gits)
        stage = Stage(
            transport=default_transport(state),
            world=world,
            policy=loaded.document,
            canaries=(*loaded.canaries, source, host),
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
        raise InvalidArgument(f"there is no scenario {unknown[0]!r}", hint=f"one of {', '.join(known)}")
    return tuple(known[name] for name in names or known)


@contextmanager
def _alone(state: Path) -> Generator[None]:
    """A state directory that was somebody's would get a world that is not the real one."""
    state.mkdir(mode=0o700, parents=True, exist_ok=True)
    if (state / layout.DATABASE).exists() and not (state / layout.WORLD_TRUST).exists():
        raise InvalidArgument(f"{state} is in use for sandboxes that are no evaluation's", hint="name an empty one")
    lock = os.open(state / "eval.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    except BlockingIOError:
        raise InvalidState(f"another evaluation uses {state}", hint="wait until it has ended") from None
    finally:
        os.close(lock)


@contextmanager
def _daemon_of(state: Path) -> Generator[None]:
    """One that is started in the block, with the canary in its environment, and ends with it."""
    stop_daemon(state)
    try:
        yield
    finally:
        stop_daemon(state)


@contextmanager
def _canary_of_host(state: Path) -> Generator[tuple[Canary, Path]]:
    """In a file, and in the environment of what is started from here."""
    directory = state / "canaries"
    directory.mkdir(mode=0o700, exist_ok=True)
    canary, file, before = Canary("host", "a file of the host", mint()), directory / "host", os.environ.get(_VARIABLE)
    file.write_text(canary.value)
    os.environ[_VARIABLE] = canary.value
    try:
        yield canary, file
    finally:
        if before is None:
            del os.environ[_VARIABLE]
        else:
            os.environ[_VARIABLE] = before
        shutil.rmtree(directory, ignore_errors=True)
