"""Where a policy asks for it, each program that is started inside is recorded; and nothing inside hangs on that."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from attacking import Attacker, audited

from paddock import Sandbox
from paddock.linux.proc_events import EventSocket
from tests.conftest import SandboxFactory, gateway_pid
from tests.orphans import wait_until

POLICY = {"audit": {"processes": True}}


def _told_here() -> bool:
    try:
        with EventSocket() as news:
            news.listen(True)
            news.listen(False)
    except OSError:
        return False
    return True


@pytest.fixture(params=["user", "root"])
def watched(request: pytest.FixtureRequest, sandbox: SandboxFactory) -> Attacker:
    if request.param == "root" and os.getuid() != 0:
        pytest.skip("there is no root inside for an ordinary user")
    if not _told_here():
        pytest.skip("this kernel does not tell this user of processes (Linux 6.6, first pid namespace)")
    return Attacker(sandbox(policy=POLICY), None if request.param == "user" else "root")


def records(state: Path, sandbox: Sandbox, action: str) -> list[dict[str, Any]]:
    found = audited(state, action)
    return [one["detail"] for one in found if one["action"] == action and one["sandbox"] == sandbox.id]


def recorded(state: Path, inside: Attacker, which: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    assert wait_until(lambda: any(map(which, records(state, inside.sandbox, "process.start"))))
    return next(one for one in records(state, inside.sandbox, "process.start") if which(one))


def one_that_waits(state: Path, inside: Attacker, mark: str, code: int = 0) -> tuple[dict[str, Any], str]:
    """The record of a program that ends when it was recorded, and what it printed."""
    script = f"cd /tmp; sh -c 'echo $$ $PPID; read x; exit {code}' -- {mark}; echo $?"
    with inside.sandbox.start(script, stdin=True, user=inside.user) as running:
        found = recorded(state, inside, lambda one: mark in one.get("argv", ()))
        running.stdin.close()
        printed = b"".join(running.stdout).decode()
        running.wait()
    return found, printed


def test_a_start_is_recorded_with_what_it_is_who_started_it_and_how_it_ended(
    watched: Attacker, shared_state: Path
) -> None:
    assert records(shared_state, watched.sandbox, "process.watch")[0]["watched"] is True
    found, printed = one_that_waits(shared_state, watched, "mark-1", 7)
    pid, parent, code = map(int, printed.split())
    assert (found["pid"], found["above"][0]["pid"], found["cwd"]) == (pid, parent, "/tmp")
    assert (found["argv"][:2], len(found["argv_sha256"]), code) == (["sh", "-c"], 64, 7)
    ended = (pid, 7)
    assert wait_until(
        lambda: ended in [(e["pid"], e.get("code")) for e in records(shared_state, watched.sandbox, "process.end")]
    )


def test_of_many_that_end_at_once_each_is_told_of_known_or_not(watched: Attacker, shared_state: Path) -> None:
    before = len(records(shared_state, watched.sandbox, "process.start"))
    watched.sh("for i in 1 2 3 4 5 6 7 8 9 10; do /bin/true; done")

    def enough() -> bool:
        told = len(records(shared_state, watched.sandbox, "process.start")) - before
        return told >= 11 or bool(records(shared_state, watched.sandbox, "process.gap"))

    assert wait_until(enough)
    starts = records(shared_state, watched.sandbox, "process.start")[before:]
    assert all("pid" in one or one["process"] == "unknown" for one in starts)


def test_nothing_inside_stops_when_nobody_looks_any_more_which_is_said_and_so_is_who_looks_next(
    watched: Attacker, shared_state: Path
) -> None:
    gateway = gateway_pid(shared_state)
    assert gateway is not None
    children = Path(f"/proc/{gateway}/task/{gateway}/children").read_text().split()
    (witness,) = (one for one in children if Path(f"/proc/{one}/comm").read_text().strip() == "paddock-procs")
    os.kill(int(witness), 9)
    assert watched.sh("/bin/echo on").stdout == "on\n"
    assert wait_until(lambda: len(records(shared_state, watched.sandbox, "process.watch")) == 2)
    os.kill(gateway, 9)
    assert watched.sh("/bin/echo on").stdout == "on\n"
    assert wait_until(lambda: len(records(shared_state, watched.sandbox, "process.watch")) == 3)
    told = [one["watched"] for one in records(shared_state, watched.sandbox, "process.watch")]
    assert told == [True, False, True]
    one_that_waits(shared_state, watched, "mark-3")


def test_without_being_asked_for_nothing_is_recorded(sandbox: SandboxFactory, shared_state: Path) -> None:
    quiet = sandbox(policy={"version": 1})
    quiet.exec("/bin/true")
    assert records(shared_state, quiet, "process.watch") == records(shared_state, quiet, "process.start") == []
