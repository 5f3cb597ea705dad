"""kill -9 of keeper and daemon at every step of a pause and of a resumption: the next use finds it awake, or wakes it.

All steps take minutes: by default some, spread over all.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from paddock import Sandbox
from paddock.client import DaemonTransport, default_transport
from paddock.errors import DaemonLost, LevelUnavailable
from tests.conftest import keepers
from tests.daemon.conftest import daemon_pid
from tests.faults.stepping import Operation, Stepper

pytestmark = pytest.mark.root  # an ordinary user may not trace a keeper
SOME = 2
Steps = Callable[[int], Iterator[int]]
WORK: dict[str, Callable[[Sandbox], object]] = {
    "pause": lambda box: box.pause(),
    "resume": lambda box: box.resume(),
    "wake": lambda box: box.exec("true"),
}


@pytest.fixture(params=["some", pytest.param("all", marks=[pytest.mark.slow, pytest.mark.timeout(1800)])])
def steps(request: pytest.FixtureRequest) -> Steps:
    """Which of so many."""
    return lambda count: iter(range(1, count + 1, 1 if request.param == "all" else max(1, count // SOME)))


@pytest.fixture
def transport(state_dir: Path) -> DaemonTransport:
    return default_transport(state_dir)


def _count(stepper: Stepper, operation: Operation) -> int:
    count = 0
    while stepper.go(1, lambda: operation.done):
        count += 1
    stepper.let_go()
    operation.end()
    return count


def _works(box: Sandbox, transport: DaemonTransport) -> None:
    """As whoever comes next sees it."""
    (told,) = [found.state for found in Sandbox.list(transport=transport) if found.id == box.id]
    assert told in ("running", "paused")
    assert box.exec("echo next").stdout == "next\n"
    assert box.refresh().state == "running"
    box.pause()
    assert box.state == "paused"
    box.kill()


@pytest.mark.parametrize("work", ["pause", "resume"])
def test_the_keeper(work: str, steps: Steps, state_dir: Path, transport: DaemonTransport) -> None:
    def begin() -> tuple[Sandbox, Stepper, Operation]:
        try:
            box = Sandbox.create(level="jail", ttl_seconds=120, transport=transport)
        except LevelUnavailable as error:
            pytest.skip(f"no jail here: {error}")
        if work == "resume":
            box.pause()
        (keeper,) = keepers(state_dir)
        return box, Stepper(keeper), Operation(getattr(box, work))

    box, stepper, operation = begin()
    count = _count(stepper, operation)
    assert count > 5
    box.kill()
    for step in steps(count):
        box, stepper, operation = begin()
        stepper.go(step, lambda operation=operation: operation.done)
        os.kill(keepers(state_dir)[0], signal.SIGKILL)
        stepper.killed()
        operation.end()
        assert operation.error is None, (step, operation.error)  # asked again, of the next one
        assert box.state == ("paused" if work == "pause" else "running"), step
        _works(box, transport)


@pytest.mark.parametrize("work", WORK)
def test_the_daemon(work: str, steps: Steps, state_dir: Path, transport: DaemonTransport) -> None:
    def begin() -> tuple[Sandbox, int, Stepper, Operation]:
        box = Sandbox.create(level="jail", ttl_seconds=120, transport=transport)
        box.exec("true")
        if work != "pause":
            box.pause()
        daemon = daemon_pid(state_dir)
        return box, daemon, Stepper(daemon), Operation(lambda: WORK[work](box))

    box, _, stepper, operation = begin()
    count = _count(stepper, operation)
    assert count > 5
    box.kill()
    for step in steps(count):
        box, daemon, stepper, operation = begin()
        stepper.go(step, lambda operation=operation: operation.done)
        os.kill(daemon, signal.SIGKILL)
        stepper.killed()
        operation.end()
        assert operation.error is None or isinstance(operation.error, DaemonLost), (step, operation.error)
        _works(box, transport)
