"""kill -9 of each part at every step of an exec and of a kill: what is said is true, and nothing is left.

The table: what is done; whose steps are counted, one system call after the other; who is killed there.

| done | steps of | killed |
|---|---|---|
| exec | agent | agent, pid 1, supervisor |
| kill | supervisor | supervisor, agent, pid 1 |
| create, fork, exec, start, write, snapshot, promote, kill | daemon | daemon |
| create, snapshot, fork, restore, rollback | supervisor | supervisor |

(Those of a create have names: tests/supervisor/test_jail.py.) All steps take minutes: by default some, spread over all.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from paddock import Mount, Sandbox
from paddock.client import DaemonTransport
from paddock.errors import DaemonLostError, GuestLostError, LevelUnavailableError, SandboxDiedError
from paddock.linux import proc
from paddock.model import ExecResult
from tests.conformance.leaks import Snapshot, wait_until_clean
from tests.conftest import live_sandboxes, supervisors
from tests.daemon.conftest import daemon_pid
from tests.faults.stepping import Operation, Stepper
from tests.orphans import wait_until

pytestmark = pytest.mark.root  # an ordinary user may not trace a supervisor, nor what is inside
SOME = 4
FEW = 2
Steps = Callable[..., Iterator[int]]


@pytest.fixture(params=["some", pytest.param("all", marks=[pytest.mark.slow, pytest.mark.timeout(1800)])])
def steps(request: pytest.FixtureRequest) -> Steps:
    """Which of so many."""

    def some(count: int, most: int = SOME) -> Iterator[int]:
        return iter(range(1, count + 1, 1 if request.param == "all" else max(1, count // most)))

    return some


class Scene:
    """A sandbox and the processes that serve it."""

    def __init__(self, state_dir: Path, transport: DaemonTransport) -> None:
        try:
            self.box = Sandbox.create(level="jail", ttl_seconds=120, transport=transport)
        except LevelUnavailableError as error:
            pytest.skip(f"no jail here: {error}")
        record = json.loads((state_dir / "run" / self.box.id / "state.json").read_bytes())
        self.init = int(record["pid"])
        (self.agent,) = _children(self.init)
        (self.supervisor,) = supervisors(state_dir)

    def pid(self, part: str) -> int:
        return int(getattr(self, part))


def _children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def _count(stepper: Stepper, operation: Operation) -> int:
    count = 0
    while stepper.go(1, lambda: operation.done):
        count += 1
    stepper.let_go()
    operation.end()
    return count


def _kill_at(step: int, scene: Scene, victim: str, work: Callable[[], object]) -> Operation:
    """Kills at that step of the agent, or after the last."""
    stepper = Stepper(scene.agent)
    operation = Operation(work)
    stepper.go(step, lambda: operation.done)
    os.kill(scene.pid(victim), signal.SIGKILL)
    if victim == "supervisor":
        stepper.let_go()
    else:  # whose end is the agent's too
        stepper.killed()
    operation.end()
    return operation


def _forty_two(operation: Operation) -> bool:
    """Whether it ended well; then what it says is whole."""
    result = operation.value
    if not isinstance(result, ExecResult) or result.signal == signal.SIGKILL:
        return False
    assert (result.exit_code, result.stdout) == (0, "42\n")
    return True


@pytest.mark.parametrize("victim", ["agent", "init", "supervisor"])
def test_an_exec(victim: str, steps: Steps, state_dir: Path, transport: DaemonTransport) -> None:
    def run(scene: Scene) -> Callable[[], object]:
        return lambda: scene.box.exec("echo $((6 * 7))")

    scene = Scene(state_dir, transport)
    stepper = Stepper(scene.agent)
    count = _count(stepper, Operation(run(scene)))
    assert count > 20
    scene.box.kill()
    before = Snapshot.take(state_dir)
    for step in steps(count):
        scene = Scene(state_dir, transport)
        operation = _kill_at(step, scene, victim, run(scene))
        well, error, box = _forty_two(operation), operation.error, scene.box
        if victim == "init":
            assert well or isinstance(error, SandboxDiedError), (step, error)
            assert wait_until(lambda box=box: box.refresh().state != "running")
            assert box.info.reason == "its pid 1 ended", step
        else:
            assert well or error is None or (victim == "agent" and isinstance(error, GuestLostError)), (step, error)
            assert well or victim == "agent"
            assert box.exec("echo next").stdout == "next\n", step
            assert box.refresh().state == "running"
            box.kill()
    _nothing_is_left_after_the_next_start(before, state_dir, transport)


@pytest.mark.parametrize("victim", ["supervisor", "agent", "init"])
def test_a_kill(victim: str, steps: Steps, state_dir: Path, transport: DaemonTransport) -> None:
    scene = Scene(state_dir, transport)
    count = _count(Stepper(scene.supervisor), Operation(scene.box.kill))
    assert count > 20
    before = Snapshot.take(state_dir)
    for step in steps(count):
        scene = Scene(state_dir, transport)
        background = scene.box.start("sleep 600", background=True)
        stepper = Stepper(scene.supervisor)
        operation = Operation(scene.box.kill)
        stepper.go(step, lambda operation=operation: operation.done)
        try:
            os.kill(scene.pid(victim), signal.SIGKILL)
        except ProcessLookupError:
            assert victim != "supervisor"  # it was killed already, as was asked
        if victim == "supervisor":
            stepper.killed()
        else:
            stepper.let_go()
        operation.end()
        assert operation.error is None, (step, operation.error)
        background.close()
        assert scene.box.refresh().state == "killed"
        assert scene.box.info.reason, step
        assert proc.state(scene.init) in "ZX", step  # an orphan is reaped by the machine's init, in its own time
        assert live_sandboxes(state_dir) == []
    _nothing_is_left_after_the_next_start(before, state_dir, transport)


AGAIN: dict[str, Callable[[Sandbox, DaemonTransport], object]] = {
    "create": lambda box, transport: Sandbox.create(level="jail", ttl_seconds=120, transport=transport),
    "snapshot": lambda box, transport: box.snapshot("second"),
    "fork": lambda box, transport: box.fork(),
    "restore": lambda box, transport: Sandbox.create(snapshot="first", ttl_seconds=120, transport=transport),
    "rollback": lambda box, transport: box.rollback("first"),
}


@pytest.mark.parametrize("work", AGAIN)
def test_what_the_supervisor_dies_in_is_done_all_the_same(
    work: str, steps: Steps, state_dir: Path, transport: DaemonTransport
) -> None:
    def start() -> tuple[Scene, Stepper, Operation]:
        scene = Scene(state_dir, transport)
        scene.box.filesystem.write("file", "kept")
        scene.box.snapshot("first")
        return scene, Stepper(scene.supervisor), Operation(lambda: AGAIN[work](scene.box, transport))

    def end(scene: Scene, operation: Operation, step: int) -> None:
        operation.end()
        assert operation.error is None, (step, operation.error)
        for box in (scene.box, *([operation.value] if isinstance(operation.value, Sandbox) else [])):
            assert box.exec("cat file; echo next").stdout in ("keptnext\n", *(["next\n"] if work == "create" else []))
            assert box.refresh().state == "running", step
            box.kill()
        for snapshot in scene.box.snapshots():
            scene.box.delete_snapshot(snapshot)

    scene, stepper, operation = start()
    count = _count(stepper, operation)
    assert count > 20
    end(scene, operation, 0)
    before = Snapshot.take(state_dir)
    for step in steps(count):
        scene, stepper, operation = start()
        stepper.go(step, lambda operation=operation: operation.done)
        os.kill(scene.supervisor, signal.SIGKILL)
        stepper.killed()
        end(scene, operation, step)
    _nothing_is_left_after_the_next_start(before, state_dir, transport)


MARKER = f"paddock-step-{os.getpid()}"
ONCE = "echo once >> log"
WORK: dict[str, Callable[[Sandbox], object]] = {
    "create": lambda box: Sandbox.create(level="jail", ttl_seconds=120, transport=box._transport),
    "fork": lambda box: box.fork(2),
    "exec": lambda box: box.exec(f"{ONCE}; echo $((6 * 7)); : {MARKER}"),
    "start": lambda box: box.start(f"{ONCE}; sleep 600; : {MARKER}", background=True),
    "write": lambda box: box.filesystem.write("written", "new"),
    "snapshot": lambda box: box.snapshot(),
    "promote": lambda box: box.promote_mount(),
    "kill": lambda box: box.kill(),
}
"""What is asked of the daemon that dies."""


@pytest.mark.parametrize("work", WORK)
def test_the_daemon(work: str, steps: Steps, state_dir: Path, transport: DaemonTransport, tmp_path: Path) -> None:
    def start() -> tuple[Sandbox, int, Stepper, Operation]:
        (tmp_path / "written").write_text("old")
        mounts = (Mount(source=str(tmp_path), target="/mnt"),) if work == "promote" else ()
        box = Sandbox.create(level="jail", ttl_seconds=120, mounts=mounts, transport=transport)
        box.exec("echo old > written; echo new > /mnt/written" if mounts else "echo old > written")
        daemon = daemon_pid(state_dir)
        return box, daemon, Stepper(daemon), Operation(lambda: WORK[work](box))

    box, _, stepper, operation = start()
    count = _count(stepper, operation)
    assert count > 20
    _end_all(transport)
    before = Snapshot.take(state_dir)
    for step in steps(count, FEW):
        box, daemon, stepper, operation = start()
        stepper.go(step, lambda operation=operation: operation.done)
        os.kill(daemon, signal.SIGKILL)
        stepper.killed()
        operation.end()
        assert operation.error is None or isinstance(operation.error, DaemonLostError), (step, operation.error)
        if work == "kill":
            if box.refresh().state == "running":
                with contextlib.suppress(SandboxDiedError):  # death was on its way
                    _goes_on(box)
            else:
                assert box.state == "killed", step
                assert box.info.reason, step
        else:
            _once(work, box, operation, transport, tmp_path)
            _goes_on(box)
        _end_all(transport)
        assert wait_until(lambda: not live_sandboxes(state_dir)), step
    _nothing_is_left_after_the_next_start(before, state_dir, transport)


def _once(work: str, box: Sandbox, operation: Operation, transport: DaemonTransport, directory: Path) -> None:
    """It was done once, if it was answered; or it is unknown, and was done at most once."""
    error, answer = operation.error, operation.value
    others = [one for one in Sandbox.list(transport=transport) if one.id != box.id]
    if work == "create":
        assert error is None
        assert isinstance(answer, Sandbox)
        assert [one.id for one in others] == [answer.id]
        assert answer.exec("echo on").stdout == "on\n"
    elif work == "fork":
        assert len(others) == 2 if error is None else len(others) in (0, 2)
    elif work == "exec":
        assert _log(box) == "once\n" if error is None else _log(box) in ("", "once\n")
    elif work == "start":
        id = error.id if isinstance(error, DaemonLostError) else getattr(answer, "id", "")
        assert id
        started = [one.id for one in box.processes() if one.id == id]
        assert started == [id] or error is not None
        if started:
            assert wait_until(lambda: _log(box) == "once\n")
            box.attach(id).kill()
    elif work == "write":
        assert box.filesystem.read_text("written").strip() in (("new",) if error is None else ("old", "new"))
    elif work == "snapshot":
        found = box.snapshots()
        assert len(found) == 1 if error is None else len(found) <= 1
        for snapshot in found:
            box.delete_snapshot(snapshot)
    else:
        assert (directory / "written").read_text() in (("new\n",) if error is None else ("old", "new\n"))


def _log(box: Sandbox) -> str:
    return box.exec("cat log 2> /dev/null").stdout


def _end_all(transport: DaemonTransport) -> None:
    for one in Sandbox.list(transport=transport):
        one.kill()


def _goes_on(box: Sandbox) -> None:
    assert box.exec("echo next").stdout == "next\n"
    assert wait_until(lambda: box.exec("pgrep -f paddock-step -c").stdout.strip() in ("0", "1"))
    box.kill()


def _nothing_is_left_after_the_next_start(before: Snapshot, state_dir: Path, transport: DaemonTransport) -> None:
    Sandbox.create(level="jail", ttl_seconds=60, transport=transport).kill()
    assert wait_until(lambda: not live_sandboxes(state_dir))
    # Another supervisor has other processes and mounts; whatever is left at its end the fixture `state_dir` sees.
    wait_until_clean(before, state_dir, ignore=("files", "descriptors", "processes", "namespaces", "mounts", "cgroups"))
