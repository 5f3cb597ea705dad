"""kill -9 of the supervisor, of pid 1, of an agent: what is said of it is true, and nothing is left."""

from __future__ import annotations

import io
import json
import os
import secrets
import signal
import threading
import time
from collections.abc import Callable, Generator
from pathlib import Path

import pytest

from paddock import Sandbox
from paddock.client import DaemonTransport, Session
from paddock.errors import GuestLostError, LevelUnavailableError, PaddockError, SandboxDiedError, SandboxError
from paddock.model import Limit, Limits
from tests.conformance.leaks import Snapshot, wait_until_clean
from tests.conftest import live_sandboxes, supervisors
from tests.faults.stepping import Operation
from tests.orphans import descriptors, none_lost, wait_until


@pytest.fixture
def state_dir(module_state: Path) -> Path:
    """A supervisor that a test kills has a successor in the next test."""
    return module_state


@pytest.fixture
def jail(transport: DaemonTransport) -> Generator[Sandbox]:
    try:
        made = Sandbox.create(level="jail", ttl_seconds=60, transport=transport)
    except (LevelUnavailableError, NotImplementedError) as error:
        pytest.skip(f"no jail here: {error}")
    yield made
    made.kill()


def test_a_sandbox_lives_on_when_its_supervisor_is_killed(jail: Sandbox, state_dir: Path) -> None:
    _kill_supervisor(state_dir)
    assert jail.exec("echo alive").stdout == "alive\n"
    jail.filesystem.write("file", "x")
    assert jail.refresh().state == "running"


def test_a_new_supervisor_takes_over_what_lives(jail: Sandbox, transport: DaemonTransport, state_dir: Path) -> None:
    _kill_supervisor(state_dir)
    with Sandbox.create(level="jail", transport=transport) as second:
        assert second.exec("echo two").stdout == "two\n"
    assert len(supervisors(state_dir)) == 1
    assert jail.exec("echo one").stdout == "one\n"
    assert jail.usage().processes != 0
    jail.kill()
    assert live_sandboxes(state_dir) == []


def test_a_deadline_strikes_although_the_supervisor_was_killed(jail: Sandbox, state_dir: Path) -> None:
    marker = _marked(jail)
    jail.extend(3)
    _kill_supervisor(state_dir)
    _until(lambda: not _processes(marker), "pid 1 ended by its own copy of the deadline")
    # Its processes die before it: for a moment it is the last one that lives.
    _until(lambda: jail.refresh().state == "killed", "its end is told")
    assert jail.info.limit == "ttl"


def test_a_killed_pid_1_ends_the_sandbox_and_that_is_said(jail: Sandbox, state_dir: Path) -> None:
    marker = _marked(jail)
    record = json.loads((state_dir / "run" / jail.id / "state.json").read_bytes())
    os.kill(record["pid"], signal.SIGKILL)
    _until(lambda: not _processes(marker), "everything died with its pid 1")
    _until(lambda: _is_dead(jail), "commands are refused, and the reason is said")
    _until(lambda: jail.refresh().state in ("failed", "killed"), "the records know it")
    assert jail.info.reason
    _until(lambda: not live_sandboxes(state_dir), "its directory is gone")


def _is_dead(jail: Sandbox) -> bool:
    try:
        jail.exec("true")
    except SandboxDiedError:
        return True
    return False


def test_a_killed_agent_is_started_again(jail: Sandbox) -> None:
    for _ in range(3):
        marker = _marked(jail)
        (workload,) = _processes(marker)
        agent = _parent(workload)
        os.kill(agent, signal.SIGKILL)
        _until(lambda agent=agent: _gone(agent), "the agent is dead")
        _until(lambda: _answers(jail), "a new agent answers")
        assert jail.refresh().state == "running"


def test_who_kills_everybody_inside_kills_commands_and_not_the_sandbox(jail: Sandbox) -> None:
    jail.exec("head -c 8000000 /dev/zero >big")
    foreground, background = jail.start("cat", stdin=True), jail.start("sleep 600", background=True)
    before = len(descriptors())

    class Target(io.BytesIO):
        def write(self, data: object) -> int:
            if not self.tell():
                assert jail.exec("kill -9 -1; sleep 600").signal == signal.SIGKILL
            return super().write(data)  # type: ignore[arg-type]

    with pytest.raises(GuestLostError, match="was killed by signal 9") as caught:
        jail.filesystem.read_to("big", Target())
    assert not isinstance(caught.value, SandboxDiedError)
    assert (foreground.wait().signal, background.wait().signal) == (9, 9)
    foreground.close()
    background.close()
    assert jail.exec("echo next").stdout == "next\n"
    assert jail.refresh().state == "running"
    assert none_lost(before - 1)


@pytest.mark.root
def test_the_memory_limit_is_named_when_it_was_what_killed_the_agent(transport: DaemonTransport) -> None:
    limits = Limits(memory_mib=48, tmp_mib=512)
    with Sandbox.create(level="jail", ttl_seconds=60, limits=limits, transport=transport) as box:
        foreground, background = box.start("sleep 600"), box.start("sleep 600", background=True)
        # No command writes here: what grows beyond the limit belongs to the agent itself.
        with pytest.raises(SandboxError):
            box.filesystem.write("/tmp/big", bytes(200 << 20))
        for command in (foreground, background):
            try:
                status = command.wait()
                assert (status.exit_code, status.limit) == (128 + 9, Limit.MEMORY)
            except SandboxDiedError:  # pid 1 was chosen as well
                assert box.refresh().limit is Limit.MEMORY
            command.close()


@pytest.mark.root
def test_the_commands_of_another_user_live_on_when_an_agent_is_killed(jail: Sandbox) -> None:
    of_root = jail.start("while ! test -e /tmp/go; do sleep 0.01; done; echo fine", user="root")
    of_user = jail.start("sleep 600")
    assert jail.exec("kill -9 -1").signal == 9
    assert of_user.wait().signal == 9
    jail.exec("touch /tmp/go")
    assert of_root.stdout is not None
    assert of_root.stdout.read() == b"fine\n"
    assert of_root.wait().code == 0


def test_who_stops_everybody_inside_does_not_stop_the_sandbox(jail: Sandbox) -> None:
    other = jail.start("sleep 600")
    jail.exec("kill -STOP -1")
    jail.filesystem.write("file", "content")
    assert jail.filesystem.read_text("file") == "content"
    jail.exec("kill -CONT -1")
    other.kill()
    assert other.wait().signal == 9
    other.close()


def test_a_stopped_agent_stops_nobody_else(jail: Sandbox, transport: DaemonTransport) -> None:
    """A sandbox that says nothing must not hold up another one, nor its own kill."""
    (workload,) = _processes(_marked(jail))
    os.kill(_parent(workload), signal.SIGSTOP)
    with Sandbox.create(level="jail", transport=transport) as other:
        assert other.exec("echo alive").stdout == "alive\n"
    jail.kill()
    assert jail.state == "killed"


def test_two_clients_that_kill_one_sandbox_at_once_both_succeed(transport: DaemonTransport, state_dir: Path) -> None:
    second = DaemonTransport(Session(state_dir))  # a session of its own
    for _ in range(8):
        mine = Sandbox.create(level="jail", ttl_seconds=60, transport=transport)
        theirs = Sandbox.connect(mine.id, transport=second)
        assert theirs.exec("echo both").stdout == mine.exec("echo both").stdout == "both\n"
        killers = [Operation(box.kill) for box in (mine, theirs)]
        for killer in killers:
            killer.end()
        assert [killer.error for killer in killers] == [None, None]
        for box in (mine, theirs):
            assert box.refresh().state == "killed"
            assert box.info.reason
    assert live_sandboxes(state_dir) == []
    assert wait_until(lambda: not list((state_dir / "run").iterdir())), "something waits to be forgotten"


def test_a_killed_supervisor_leaves_no_half_made_sandbox(
    jail: Sandbox, transport: DaemonTransport, state_dir: Path
) -> None:
    jail.kill()
    before = Snapshot.take(state_dir)
    for n in range(6):
        failures: list[BaseException] = []

        def make(failures: list[BaseException] = failures) -> None:
            try:
                Sandbox.create(level="jail", ttl_seconds=5, transport=transport).kill()
            except PaddockError as error:
                failures.append(error)

        thread = threading.Thread(target=make)
        thread.start()
        time.sleep(0.001 * n)  # where it is hit is chance
        _kill_supervisor(state_dir, missing_ok=True)
        thread.join(60)
        assert not thread.is_alive(), "a create without a supervisor ends, well or badly"
    with Sandbox.create(level="jail", transport=transport) as sandbox:
        assert sandbox.exec("echo fine").stdout == "fine\n"
    _until(lambda: not live_sandboxes(state_dir), "nothing half-made is left")
    assert all(s.state in ("killed", "failed") for s in Sandbox.list(ended=True, transport=transport))
    wait_until_clean(before, state_dir, ignore=["files", "descriptors", "processes", "namespaces", "mounts"])
    assert len(supervisors(state_dir)) <= 1


def _marked(sandbox: Sandbox) -> str:
    marker = f"paddock-fault-{secrets.token_hex(8)}"
    sandbox.start(["python3", "-I", "-S", "-c", "import time; time.sleep(600)", marker], background=True).close()
    _until(lambda: len(_processes(marker)) == 1, "the marked process stands")
    return marker


def _processes(marker: str) -> list[int]:
    found: list[int] = []
    for name in os.listdir("/proc"):
        try:
            if name.isdigit() and marker.encode() in Path("/proc", name, "cmdline").read_bytes():
                found.append(int(name))
        except OSError:
            continue
    return found


def _parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def _gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def _answers(sandbox: Sandbox) -> bool:
    try:
        return sandbox.exec("echo alive").stdout == "alive\n"
    except PaddockError:
        return False


def _kill_supervisor(state_dir: Path, *, missing_ok: bool = False) -> None:
    pids = supervisors(state_dir)
    assert pids or missing_ok, "there is a supervisor to kill"
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
        _until(lambda pid=pid: _gone(pid), "the supervisor is dead")


def _until(condition: Callable[[], bool], what: str, seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"not within {seconds:g} s: {what}"
        time.sleep(0.05)
