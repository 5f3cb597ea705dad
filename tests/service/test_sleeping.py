"""Pause, resume, sleep and wake, through the door, with real jails."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from paddock import Sandbox
from paddock.errors import InvalidArgument, SandboxDied
from paddock.model import Limit, PtySize, State

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
        box.pause()
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
        assert echo.stdout.read() == b"one\n"
        box.pause()
        echo.stdin.write(b"two\n")
        assert echo.stdout.read() == b"two\n"
        assert box.refresh().state is State.RUNNING
        box.pause()
        terminal.stdin.write(b"echo $((40+2))\n")
        said = b""
        while b"42" not in said:
            said += terminal.stdout.read()
        assert box.refresh().state is State.RUNNING


@pytest.mark.slow
def test_no_timeout_runs_out_while_it_stands_still(sandbox: Make) -> None:
    box = sandbox(ttl_seconds=600)
    script = "echo here; while [ ! -e /tmp/go ]; do sleep 0.1; done; echo over"
    background = box.start(script, background=True, timeout_seconds=15)
    with box.start(script, timeout_seconds=15) as process, ThreadPoolExecutor(1) as beside:
        run = beside.submit(lambda: box.exec(script, timeout_seconds=15))
        assert process.stdout.read() == b"here\n"
        while len(box.processes()) < 3:
            pass
        box.pause()
        time.sleep(16)  # longer than any of the timeouts: it is time itself that must not count
        assert box.refresh().state is State.PAUSED
        box.filesystem.write("/tmp/go", b"")
        assert process.wait().exit_code == 0
        assert run.result().exit_code == 0
        assert background.wait().exit_code == 0


def test_a_timeout_still_holds_after_a_pause(sandbox: Make) -> None:
    box = sandbox()
    with box.start(["sleep", "600"], timeout_seconds=2) as process:
        box.pause()
        box.resume()
        assert process.wait().limit is Limit.TIME


def test_nothing_wakes_it_when_it_was_killed(sandbox: Make) -> None:
    box = sandbox()
    box.pause()
    box.kill()
    for use in (box.pause, box.resume, lambda: box.exec("true")):
        with pytest.raises(SandboxDied):
            use()


@pytest.mark.slow
def test_its_time_to_live_goes_on_while_it_stands_still(sandbox: Make) -> None:
    box = sandbox(ttl_seconds=600)  # a first machine is made as well
    box.extend(15)
    box.pause()
    while box.refresh().state is not State.KILLED:
        time.sleep(0.1)
    assert box.info.limit is Limit.TTL


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
    box = sandbox(idle_seconds=1)
    box.start(COUNTING, background=True).close()
    with box.start(["cat"], stdin=True) as echo:  # whoever holds something open uses it
        time.sleep(2)
        assert box.refresh().state is State.RUNNING
        assert echo.stdin is not None
        echo.stdin.write(b"x\n")
        assert echo.stdout.read() == b"x\n"
    while box.refresh().state is not State.PAUSED:
        time.sleep(0.02)
    before = used(box)
    assert used(box) == before
    assert "sandbox.slept" in events(box)
    assert box.exec("echo awake").stdout == "awake\n"
    with box.start(["cat"], stdin=True):  # else it may have been idle for a second again
        assert box.refresh().state is State.RUNNING
    while box.refresh().state is not State.PAUSED:
        time.sleep(0.02)


@pytest.mark.parametrize("idle_seconds", [0, 0.5, -1, float("nan"), float("inf")])
def test_a_time_that_makes_no_sense_is_refused(sandbox: Make, idle_seconds: float) -> None:
    with pytest.raises(InvalidArgument, match="idle_seconds"):
        sandbox(idle_seconds=idle_seconds)
