"""Pause, resume, sleep and wake, through the door, with real jails."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from paddock import Sandbox
from paddock.errors import InvalidArgumentError, InvalidStateError, SandboxDiedError
from paddock.model import Limit, PtySize, State
from tests.orphans import wait_until

Make = Callable[..., Sandbox]
COUNTING = "while :; do n=$((n+1)); echo $n >/tmp/n.new; mv /tmp/n.new /tmp/n; done"


def used(box: Sandbox) -> float:
    return box.usage().cpu_seconds or 0.0


def events(box: Sandbox) -> list[str]:
    from paddock.client import default_transport
    from paddock.model import ListAudit

    found = default_transport().perform(ListAudit(sandbox=box.id))
    return [record.action for record in found if record.action.startswith("sandbox.")]


def test_a_paused_sandbox_says_so_and_any_use_wakes_it(sandbox: Make) -> None:
    box = sandbox()
    box.start(COUNTING, background=True)
    uses: list[Callable[[], object]] = [
        lambda: box.exec("true", check=True),
        lambda: box.filesystem.write("/tmp/file", b"x"),
        lambda: box.filesystem.read("/tmp/file"),
        lambda: box.filesystem.list("/tmp"),
        box.processes,
        box.resume,
    ]
    for use in uses:
        box.pause(force=True)
        box.pause()
        assert box.state is State.PAUSED
        assert [found.state for found in Sandbox.list() if found.id == box.id] == [State.PAUSED]
        use()
        assert box.refresh().state is State.RUNNING
    assert events(box).count("sandbox.woken") == len(uses) - 1
    box.resume()
    assert box.state is State.RUNNING


def test_what_only_looks_at_it_lets_it_sleep(sandbox: Make) -> None:
    box = sandbox()
    box.pause()
    box.usage()
    box.refresh()
    box.snapshot()
    child = box.fork()
    try:
        assert child.exec("echo here").stdout == "here\n"
        assert child.state is State.RUNNING
    finally:
        child.kill()
    assert box.refresh().state is State.PAUSED


def test_many_uses_at_once_wake_it_once(sandbox: Make) -> None:
    box = sandbox()
    box.pause()
    with ThreadPoolExecutor(16) as many:
        answers = [answer.result().stdout for answer in [many.submit(box.exec, f"echo {n}") for n in range(16)]]
    assert answers == [f"{n}\n" for n in range(16)]
    assert events(box).count("sandbox.woken") == 1


def test_streams_stay_open_and_what_is_written_wakes_it(sandbox: Make) -> None:
    box = sandbox()
    with box.start(["cat"], stdin=True) as echo, box.start(["sh"], pty=PtySize(rows=24, columns=80)) as terminal:
        assert echo.stdin is not None
        assert terminal.stdin is not None
        echo.stdin.write(b"one\n")
        assert echo.stdout.read(100) == b"one\n"
        box.pause(force=True)
        echo.stdin.write(b"two\n")
        assert echo.stdout.read(100) == b"two\n"
        assert box.refresh().state is State.RUNNING
        box.pause(force=True)
        terminal.stdin.write(b"echo $((40+2))\n")
        said = b""
        while b"42" not in said:
            said += terminal.stdout.read(100)
        assert box.refresh().state is State.RUNNING


@pytest.mark.slow
def test_no_timeout_runs_out_while_it_stands_still(sandbox: Make) -> None:
    box = sandbox(ttl_seconds=600)
    script = "echo here; while [ ! -e /tmp/go ]; do sleep 0.1; done; echo over"
    background = box.start(script, background=True, timeout_seconds=15)
    with box.start(script, timeout_seconds=15) as process, ThreadPoolExecutor(1) as beside:
        run = beside.submit(lambda: box.exec(script, timeout_seconds=15))
        assert process.stdout.read(100) == b"here\n"
        while len(box.processes()) < 3:
            pass
        box.pause(force=True)
        time.sleep(16)  # longer than any of the timeouts: it is time itself that must not count
        assert box.refresh().state is State.PAUSED
        box.filesystem.write("/tmp/go", b"")
        assert process.wait().exit_code == 0
        assert run.result().exit_code == 0
        assert background.wait().exit_code == 0


def test_a_timeout_still_holds_after_a_pause(sandbox: Make) -> None:
    box = sandbox()
    with box.start(["sleep", "600"], timeout_seconds=2) as process:
        box.pause(force=True)
        box.resume()
        assert process.wait().limit is Limit.TIME


def test_nothing_wakes_it_when_it_was_killed(sandbox: Make) -> None:
    box = sandbox()
    box.pause()
    box.kill()
    for use in (box.pause, box.resume, lambda: box.exec("true")):
        with pytest.raises(SandboxDiedError):
            use()


@pytest.mark.slow
def test_its_ttl_stands_still_with_it(sandbox: Make) -> None:
    box = sandbox(ttl_seconds=600)  # a first machine is made as well
    box.extend(15)
    box.pause()
    left = box.info.left_seconds
    assert left is not None
    time.sleep(left + 2)  # longer than its TTL would have lasted: it is time itself that must not count
    assert box.refresh().left_seconds == left
    assert box.exec("echo here").stdout == "here\n"
    assert box.refresh().left_seconds is None
    while box.refresh().state is not State.KILLED:
        time.sleep(0.1)
    assert box.info.limit is Limit.TTL


def test_a_paused_one_says_until_when_it_is_kept_and_what_is_left(sandbox: Make) -> None:
    box = sandbox(ttl_seconds=600)
    box.pause()
    asked = time.time()
    assert box.info.kept_until == box.info.expires_at == pytest.approx(asked + 30 * 86_400, abs=60)
    assert box.info.left_seconds == pytest.approx(600, abs=60)
    (listed,) = [found.info for found in Sandbox.list() if found.id == box.id]
    assert (listed.left_seconds, listed.kept_until) == (box.info.left_seconds, box.info.kept_until)
    box.resume()
    assert (box.info.left_seconds, box.info.kept_until) == (None, None)
    assert box.info.expires_at == pytest.approx(asked + 600, abs=60)


def test_a_pause_names_the_commands_that_run_and_stops_none(sandbox: Make) -> None:
    box = sandbox()
    with box.start(["sleep", "600"]):
        box.start("sleep 601; true", background=True).close()
        with pytest.raises(InvalidStateError) as refused:
            box.pause()
        assert "2 commands run in sandbox" in refused.value.message
        assert "sleep 600 (ex_" in refused.value.message
        assert "sleep 601; true (ex_" in refused.value.message
        assert refused.value.message.count("in the background") == 1
        assert refused.value.hint == f"pause it all the same: paddock pause {box.id} --force"
        assert box.refresh().state is State.RUNNING
        box.pause(force=True)
        assert box.refresh().state is State.PAUSED
        box.pause()  # it stands still already


def test_whoever_waits_for_a_command_is_told_of_the_pause(sandbox: Make, caplog: pytest.LogCaptureFixture) -> None:
    box = sandbox()
    script = "while [ ! -e /tmp/go ]; do sleep 0.1; done"

    def told() -> int:
        said = f"sandbox {box.id} is paused, and the command that you wait for stands still: paddock resume {box.id}"
        records = [record for record in caplog.records if record.getMessage() == said]
        return sum(record.levelno == logging.WARNING for record in records)

    background = box.start(script, background=True)
    with ThreadPoolExecutor(3) as many:
        waits = [many.submit(background.wait), many.submit(box.exec, script)]
        while len(box.processes()) < 2:
            pass
        box.pause(force=True)
        while told() < 2:
            time.sleep(0.01)
        assert not any(wait.done() for wait in waits)
        box.filesystem.write("/tmp/go", b"")
        assert [wait.result().exit_code for wait in waits] == [0, 0]
    assert told() == 2


def test_a_rollback_of_a_paused_one_runs(sandbox: Make) -> None:
    box = sandbox()
    box.filesystem.write("/workspace/file", b"before")
    kept = box.snapshot()
    box.filesystem.write("/workspace/file", b"after")
    box.pause()
    box.rollback(kept)
    assert box.state is State.RUNNING
    assert box.filesystem.read("/workspace/file") == b"before"


def test_an_idle_one_sleeps_until_it_is_used(sandbox: Make) -> None:
    box = sandbox(idle_timeout=1)
    box.start(COUNTING, background=True).close()
    with box.start(["cat"], stdin=True) as echo:  # whoever holds something open uses it
        time.sleep(2)
        assert box.refresh().state is State.RUNNING
        assert echo.stdin is not None
        echo.stdin.write(b"x\n")
        assert echo.stdout.read(100) == b"x\n"
    while box.refresh().state is not State.PAUSED:
        time.sleep(0.02)

    def gets_on() -> bool:
        before = used(box)
        for _ in range(50):
            box.refresh()
        return used(box) > before

    assert wait_until(lambda: not gets_on())  # it counts as paused before its last program gives its processor away
    assert "sandbox.slept" in events(box)
    assert box.exec("echo awake").stdout == "awake\n"
    with box.start(["cat"], stdin=True):  # else it may have been idle for a second again
        assert box.refresh().state is State.RUNNING
    while box.refresh().state is not State.PAUSED:
        time.sleep(0.02)


@pytest.mark.parametrize("idle_seconds", [0, 0.5, -1, float("nan"), float("inf")])
def test_a_time_that_makes_no_sense_is_refused(sandbox: Make, idle_seconds: float) -> None:
    with pytest.raises(InvalidArgumentError, match="idle_"):
        sandbox(idle_timeout=idle_seconds)
