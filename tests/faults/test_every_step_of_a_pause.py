"""kill -9 of supervisor and daemon at every step of a pause and of a resumption: the next use finds it awake, or wakes
it, and its TTL has neither been lost nor begun anew.

All steps take minutes: by default some, spread over all.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from paddock import Sandbox
from paddock.client import DaemonTransport
from paddock.errors import DaemonLostError, LevelUnavailableError, SandboxDiedError
from paddock.model import Sandbox as SandboxInfo
from tests.conftest import supervisors
from tests.daemon.conftest import daemon_pid
from tests.faults.stepping import Operation, Stepper

pytestmark = pytest.mark.root  # an ordinary user may not trace a supervisor
SOME = 2
TTL = 120
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


def _count(stepper: Stepper, operation: Operation) -> int:
    count = 0
    while stepper.go(1, lambda: operation.done):
        count += 1
    stepper.let_go()
    operation.end()
    return count


def _left(box: SandboxInfo) -> float:
    """Of its TTL. At any time since its create it is what it was then, but for the time in which it ran."""
    age = time.time() - box.created_at
    left = box.expires_at - time.time() if box.left_seconds is None else box.left_seconds
    assert (box.left_seconds is None) == (box.kept_until is None) == (box.state == "running")
    assert TTL - age - 1 <= left <= TTL + 1
    return left


def _works(box: Sandbox, transport: DaemonTransport) -> None:
    """As whoever comes next sees it."""
    (told,) = [found.info for found in Sandbox.list(transport=transport) if found.id == box.id]
    assert told.state in ("running", "paused")
    before = _left(told)
    assert box.exec("echo next").stdout == "next\n"
    assert box.refresh().state == "running"
    assert _left(box.info) <= before + 1
    box.pause()
    assert box.state == "paused"
    assert _left(box.info) <= before + 1
    box.kill()


def _still(transport: DaemonTransport, **idle: float) -> tuple[Sandbox, float]:
    """One that was paused with little left of its TTL, or fell asleep so; with more, where that was over before. When
    it would have ended."""
    seconds = 1
    while True:
        box = Sandbox.create(level="jail", ttl_seconds=TTL, persistent=True, transport=transport, **idle)
        ends = time.time() + seconds
        with contextlib.suppress(SandboxDiedError):
            box.extend(seconds)
            if not idle:
                box.pause()
        while box.refresh().state == "running":
            time.sleep(0.02)
        if box.state == "paused":
            assert 0 <= (box.info.left_seconds or 0.0) <= seconds
            return box, ends
        assert (box.state, box.info.limit) == ("killed", "ttl")
        seconds *= 2


def test_past_its_ttl_it_lives_with_what_was_left_whoever_was_killed(
    state_dir: Path, transport: DaemonTransport
) -> None:
    (box, _), (idle, ends) = _still(transport), _still(transport, idle_timeout=1)
    left = {one.id: one.refresh().left_seconds for one in (box, idle)}
    for pid in (daemon_pid(state_dir), *supervisors(state_dir)):
        os.kill(pid, signal.SIGKILL)
    time.sleep(max(0.0, ends + 1.5 - time.time()))  # it is time itself that must not count
    for one in (box, idle):
        assert one.refresh().state == "paused"
        assert one.info.left_seconds == left[one.id]
        one.resume()
        assert one.refresh().expires_at <= time.time() + (left[one.id] or 0)
        while one.refresh().state not in ("killed", "paused"):  # the idle one falls asleep again
            time.sleep(0.1)
    assert (box.info.state, box.info.limit) == ("killed", "ttl")
    idle.kill()


@pytest.mark.parametrize("work", ["pause", "resume"])
def test_the_supervisor(work: str, steps: Steps, state_dir: Path, transport: DaemonTransport) -> None:
    def begin() -> tuple[Sandbox, Stepper, Operation]:
        try:
            box = Sandbox.create(level="jail", ttl_seconds=TTL, transport=transport)
        except LevelUnavailableError as error:
            pytest.skip(f"no jail here: {error}")
        if work == "resume":
            box.pause()
        (supervisor,) = supervisors(state_dir)
        return box, Stepper(supervisor), Operation(getattr(box, work))

    box, stepper, operation = begin()
    count = _count(stepper, operation)
    assert count > 5
    box.kill()
    for step in steps(count):
        box, stepper, operation = begin()
        stepper.go(step, lambda operation=operation: operation.done)
        os.kill(supervisors(state_dir)[0], signal.SIGKILL)
        stepper.killed()
        operation.end()
        assert operation.error is None, (step, operation.error)  # asked again, of the next one
        assert box.state == ("paused" if work == "pause" else "running"), step
        _works(box, transport)


@pytest.mark.parametrize("work", WORK)
def test_the_daemon(work: str, steps: Steps, state_dir: Path, transport: DaemonTransport) -> None:
    def begin() -> tuple[Sandbox, int, Stepper, Operation]:
        box = Sandbox.create(level="jail", ttl_seconds=TTL, transport=transport)
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
        assert operation.error is None or isinstance(operation.error, DaemonLostError), (step, operation.error)
        _works(box, transport)
