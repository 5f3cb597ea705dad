"""kill -9 at every step of falling asleep on disk and of waking: there is one machine afterwards, in which all goes on.

A step is the first of one or more calls of functions, or of returns from them, in the files that do this; a coroutine
that waits returns, too. So no step has to be named in the product, and none is left out. One machine goes through all
of them: it counts in memory, in its tree and in its workspace, and what was lost anywhere on the way is missing in the
end.

The table: what is done; who is killed at a step of the daemon that does it, on a thread of a program.

| done | killed |
|---|---|
| sleep | daemon, supervisor, VMM |
| wake | daemon, supervisor |

All steps take many minutes: by default a few. Below, what else may come between.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import pytest

from paddock import Sandbox, Workspace
from paddock.client import default_transport
from paddock.errors import ResourceExhaustedError, SandboxDiedError, UnsupportedError
from paddock.linux import processes
from paddock.storage.pool import _image
from paddock.supervisor import layout
from paddock.supervisor.records import Records
from tests.conftest import SandboxFactory, live_sandboxes, supervisors
from tests.faults.conftest import Program
from tests.in_process import in_process
from tests.levels.conftest import SMALL
from tests.orphans import wait_until

PATIENCE_SECONDS = 180  # for a machine whose processor is emulated, beside others
STEPS = """
import contextlib, os, signal, sys, threading
FILES = tuple("/paddock/" + name + ".py" for name in (
    "daemon/sandboxes/restore", "daemon/sandboxes/snapshots", "daemon/sandboxes/_copies",
    "backends/microvm/_images",
))
seen, last, at, victim = -1, "", 0, 0
def step(frame, event, argument):
    global seen, last
    if seen >= 0 and event in ("call", "return") and event != last and frame.f_code.co_filename.endswith(FILES):
        seen, last = seen + 1, event
        if seen == at:
            with contextlib.suppress(ProcessLookupError):  # it has ended, as it was to
                os.kill(victim, signal.SIGKILL)
threading.setprofile(step)
"""
PROGRAM = """
from paddock.errors import PaddockError
from pathlib import Path
from tests.in_process import in_process
with in_process(Path(os.environ["PADDOCK_STATE_DIR"])):
    s = Sandbox.connect({id!r})
    at, victim = {at}, {victim} or os.getpid()
    seen, error = 0, None
    try:
        {work}
    except PaddockError as failure:
        error = failure.code
    count, seen = seen, -1
    say(count=count, error=error)
"""
SLEEPS = """
s = Sandbox.connect({id!r})
slept = [s.pause(to_disk=True, force=True) for _ in range(5)]
say(slept=len(slept))
"""
WORK = {"sleep": "s.pause(to_disk=True, force=True)", "wake": "s.exec('true')"}
# Of some 40 and 60: while it is saved, when it is to end; when it is made and nobody knows.
SOME = (("sleep", 15), ("sleep", 28), ("wake", 50))
# It has a number in memory and nowhere else, and says it, one more each time, when asked; each time, two files grow.
# Who asks may be gone before he is answered.
COUNTER = """
import os
os.mkfifo("/tmp/ask")
number = 0
for line in os.fdopen(os.open("/tmp/ask", os.O_RDWR)):
    number += 1
    for place in ("/home/user", "/workspace"):
        with open(place + "/numbers", "a") as file: print(number, file=file)
    with open("/tmp/new", "w") as answer: print(number, os.getpid(), file=answer)
    os.rename("/tmp/new", "/tmp/answer." + line.strip())
"""
ASK = """
echo $$ >/tmp/ask
until test -e /tmp/answer.$$; do sleep 0.05; done
cat /tmp/answer.$$ /home/user/numbers /workspace/numbers
"""


def ask(box: Sandbox) -> list[str]:
    """The number, the process that counts, and all that is in both files."""
    return box.exec(ASK, check=True, timeout_seconds=PATIENCE_SECONDS).stdout.split()


class Machine:
    """One that counts, in the state directory that this session shares."""

    def __init__(self, box: Sandbox, state_dir: Path) -> None:
        self.box, self.state_dir = box, state_dir
        box.exec("rm -f /workspace/numbers", check=True)  # of one before
        box.start(["python3", "-c", COUNTER], background=True, cwd="/")
        box.exec("until test -p /tmp/ask; do sleep 0.1; done", check=True, timeout_seconds=PATIENCE_SECONDS)
        self.counted, self._pid = 0, ""
        self.goes_on()

    def goes_on(self) -> list[str]:
        """In memory, in its tree and in its workspace: nothing is lost or was done twice, and it is there once."""
        said = ask(self.box)
        self.counted, self._pid = self.counted + 1, self._pid or said[1]
        numbers = [str(number + 1) for number in range(self.counted)]
        assert said == [str(self.counted), self._pid, *numbers, *numbers]
        assert self.box.refresh().state == "running"
        assert len(self.emulators()) == 1
        return said

    def emulators(self) -> list[int]:
        return [pid for id in live_sandboxes(self.state_dir) for pid in _emulators(self.state_dir, id)]

    def do(self, work: str, at: int = 0, victim: int = 0) -> tuple[dict[str, Any] | None, str]:
        """In a daemon of its own, killing at that step: what it says, if it lives, and how the machine is told."""
        if work == "wake":
            self.box.pause(to_disk=True, force=True)
            assert self.emulators() == []
        code = PROGRAM.format(id=self.box.id, at=at, victim=victim, work=WORK[work])
        program = Program(self.state_dir, code, preface=STEPS)
        try:
            said = program.hears(seconds=PATIENCE_SECONDS) if victim or not at else None
            assert program.process.wait(PATIENCE_SECONDS) == (-9 if said is None else 0)
        finally:
            program.close()
        (state,) = [found.state.value for found in Sandbox.list(ended=True) if found.id == self.box.id]
        assert len(self.emulators()) <= 1
        return said, state


@pytest.fixture
def machine(sandbox: SandboxFactory, shared_state: Path) -> Generator[Callable[[], Machine]]:
    """Makes one over the workspace of the test; nothing of any is left at its end."""
    workspace = Workspace.open("sleeps-on-disk", transport=default_transport(shared_state))
    names = _names(shared_state)
    boxes: list[Sandbox] = []

    def make() -> Machine:
        options = {"level": "microvm", "limits": SMALL, "workspace": workspace.name, "ttl_seconds": 3000}
        try:
            boxes.append(sandbox(persistent=True, **options))
        except UnsupportedError as error:
            pytest.skip(str(error))
        return Machine(boxes[-1], shared_state)

    try:
        yield make
    finally:
        for box in boxes:
            box.kill()
        workspace.delete(discard=True)
    assert wait_until(lambda: not live_sandboxes(shared_state))
    _sweep(shared_state)
    assert _names(shared_state) <= names


def _emulators(state_dir: Path, id: str) -> list[int]:
    """Those in which a sandbox runs."""
    directory = os.open(state_dir / layout.RUN, os.O_RDONLY | os.O_DIRECTORY)
    try:
        record = Records(directory).read(id)
    finally:
        os.close(directory)
    below = () if record is None else processes.below(record.pid)
    return [one.pid for one in below if one.name.startswith(b"qemu")]


def _names(state_dir: Path) -> frozenset[str]:
    """Of the trees that come and go with sandboxes."""
    with in_process(state_dir) as daemon:
        names = daemon.service.garbage._pool().names()
    return frozenset(name for name in names if name.startswith(("sb_", "sn_", "rb_", "mm_", "wv_")))


def _sweep(state_dir: Path) -> None:
    with in_process(state_dir) as daemon:
        daemon.run(daemon.service.recovery.sweep)


def _some(count: int, most: int) -> Iterator[int]:
    """So many of 1 to `count`, spread evenly."""
    return iter([1 + int((n + 0.5) * count / most) for n in range(most)])


def _count(machine: Machine, work: str) -> int:
    said, state = machine.do(work)
    assert said is not None
    assert (said["error"], state) == (None, {"sleep": "paused", "wake": "running"}[work])
    machine.goes_on()
    assert said["count"] > 20
    return int(said["count"])


def _daemon_dies(machine: Machine, work: str, step: int) -> None:
    said, state = machine.do(work, step)
    assert said is None
    assert state in ("running", "paused", "restoring"), step
    machine.goes_on()


def _supervisor_dies(machine: Machine, work: str, step: int, state_dir: Path) -> None:
    (supervisor,) = supervisors(state_dir)
    said, state = machine.do(work, step, supervisor)
    assert said is not None
    assert state in ("running", "paused", "restoring"), (step, said)
    machine.goes_on()


@pytest.mark.slow  # every time, the simulation
@pytest.mark.timeout(900)
def test_some_steps(machine: Callable[[], Machine], shared_state: Path) -> None:
    one = machine()
    for work, step in SOME:
        _daemon_dies(one, work, step)
    _supervisor_dies(one, "sleep", 23, shared_state)


@pytest.mark.slow
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("work", WORK)
def test_the_daemon(work: str, machine: Callable[[], Machine]) -> None:
    one = machine()
    # Threads may take turns otherwise, and the last returns be one fewer; after them nothing is done.
    for step in range(1, _count(one, work) - 1):
        _daemon_dies(one, work, step)


@pytest.mark.slow
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("work", WORK)
def test_the_supervisor(work: str, machine: Callable[[], Machine], shared_state: Path) -> None:
    one = machine()
    for step in _some(_count(one, work), 12):
        _supervisor_dies(one, work, step, shared_state)


@pytest.mark.slow
@pytest.mark.timeout(3000)
def test_the_emulator(machine: Callable[[], Machine]) -> None:
    """It has died, and says of what, or sleeps already."""
    one = machine()
    for step in _some(_count(one, "sleep"), 8):
        (pid,) = one.emulators()
        said, state = one.do("sleep", step, pid)
        assert said is not None
        if said["error"] is None:
            assert state == "paused"
            one.goes_on()
            continue
        assert (said["error"], state) == ("sandbox_died", "killed"), step
        one.box.refresh()
        assert one.box.info.reason
        assert one.emulators() == []
        one = machine()


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_without_room_it_goes_on_or_sleeps_on(machine: Callable[[], Machine], monkeypatch: pytest.MonkeyPatch) -> None:
    one = machine()

    def full() -> None:
        """For the pool: all that is free on its disk is kept free."""
        for name, value in (("_PART", 1), ("_MOST_BELOW_AN_IMAGE", 1 << 60), ("_MOST_BELOW_TREES", 1 << 60)):
            monkeypatch.setattr(_image, name, value)

    with in_process(one.state_dir):
        full()
        with pytest.raises(ResourceExhaustedError, match="kept free"):
            one.box.pause(to_disk=True, force=True)
        one.goes_on()
        monkeypatch.undo()
        one.box.pause(to_disk=True, force=True)
        full()
        with pytest.raises(ResourceExhaustedError, match="kept free"):
            one.box.exec("true")
        assert (one.box.refresh().state, one.emulators()) == ("paused", [])
        monkeypatch.undo()
        one.goes_on()


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_asleep_it_is_copied_taken_back_and_killed_as_awake(machine: Callable[[], Machine]) -> None:
    one = machine()
    one.box.pause(to_disk=True, force=True)
    snapshot = one.box.snapshot()
    one.goes_on()
    one.box.pause(to_disk=True, force=True)
    child = one.box.fork()
    try:
        theirs = ask(child)
    finally:
        child.kill()
    assert theirs == one.goes_on()
    one.box.pause(to_disk=True, force=True)
    one.box.rollback(snapshot)
    one.counted -= 2
    one.goes_on()
    one.box.pause(to_disk=True, force=True)
    one.box.delete_snapshot(snapshot)
    one.box.kill()
    assert one.box.state == "killed"


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_put_to_sleep_by_one_program_and_used_by_another_it_loses_nothing(machine: Callable[[], Machine]) -> None:
    """Who waits for a command in it may be told that it was put to sleep meanwhile, and the command has ended."""
    one = machine()
    other = Program(one.state_dir, SLEEPS.format(id=one.box.id))
    uses = refusals = 0
    try:
        while other.process.poll() is None:
            uses += 1
            try:
                ask(one.box)
            except SandboxDiedError as error:
                if "put to sleep on disk" not in str(error):
                    raise
                refusals += 1
        assert other.hears()["slept"]
    finally:
        other.close()
    number, _, *counted = ask(one.box)
    assert uses - refusals < int(number) - one.counted <= uses + 1
    assert counted == 2 * [str(each + 1) for each in range(int(number))]
