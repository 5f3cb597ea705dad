"""The daemon's own code, simulated: thousands of histories of programs, faults and deaths, each drawn from a seed.

`docs/design/simulation.md` says what is simulated, and what every history is checked against. A history that fails
prints the line that repeats it.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.seed import SEED

ROOT = Path(__file__).parents[2]
SAMPLE, MANY = 300, 10_000


def _play(*arguments: str, code: tuple[str, ...] = ("-m", "tests.simulation"), **environment: str) -> tuple[int, str]:
    """In a process of its own: the order of sets is a part of a history, and the interpreter draws it at its start."""
    done = subprocess.run(
        [sys.executable, *code, *arguments],
        cwd=ROOT,
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout


@pytest.mark.timeout(900)
def test_every_history_keeps_the_promises() -> None:
    """Of a seed that stays: the same code gives the same result on every machine, and at every commit."""
    code, said = _play(os.environ.get("PADDOCK_SEED", "sample"), str(SAMPLE))
    assert code == 0, said


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_ten_thousand_histories_keep_the_promises() -> None:
    code, said = _play(f"{SEED}/many", str(MANY))
    assert code == 0, said


RECOVERY_STEPS = 160


@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", ["recovery/1", "recovery/4"])
def test_a_daemon_that_dies_at_any_step_of_its_recovery_is_recovered_by_the_next(seed: str) -> None:
    _dies_at_every_step(seed)


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_a_daemon_that_dies_at_any_step_of_many_recoveries_is_recovered_by_the_next() -> None:
    for number in range(40):
        _dies_at_every_step(f"{SEED}/recovery/{number}")


def _dies_at_every_step(seed: str) -> None:
    code, said = _play(f"{seed}@", str(RECOVERY_STEPS))
    assert code == 0, said
    last = _play(f"{seed}@{RECOVERY_STEPS}")[1]
    assert "daemon 2 listens" in last or "daemon 2 starts" not in last, "a recovery has more steps"


@pytest.mark.timeout(300)
def test_a_seed_repeats_its_history() -> None:
    once, again = (_play(f"{SEED}/5", PYTHONHASHSEED=hashes)[1].splitlines() for hashes in ("1", "2"))
    assert once[:-1] == again[:-1]
    assert len(once) > 20


BROKEN = """
import sys
from paddock.daemon.lanes import Lanes
from tests.simulation.__main__ import main
Lanes.exclusive = Lanes.shared
sys.exit(main(["broken", "100"]))
"""


@pytest.mark.timeout(300)
def test_a_daemon_without_lanes_is_found_out() -> None:
    code, said = _play(code=("-c", BROKEN), PYTHONHASHSEED="0")
    assert code == 1
    assert "overlaps" in said
    assert "repeat it: python -m tests.simulation broken/" in said
