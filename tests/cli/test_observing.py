"""Looking at sandboxes: ps, inspect, logs, stats, why, audit; on real ones, each call a process of its own."""

from __future__ import annotations

import json
import os
import pwd
import re
import subprocess
import sys

import pytest

from paddock.cli._logs import bounded
from tests.conftest import SandboxFactory
from tests.orphans import wait_until


def paddock(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "paddock", *arguments],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


def document(*arguments: str) -> object:
    done = paddock(*arguments, "--json")
    assert done.returncode == 0, done.stdout
    return json.loads(done.stdout)


@pytest.fixture
def box(sandbox: SandboxFactory) -> str:
    return sandbox(persistent=True, ttl_seconds=120).id


def test_ps_shows_every_process_also_one_that_hides(box: str) -> None:
    hidden = "(setsid bash -c 'exec -a \"\x1b[31m[kworker]\" sleep 77' & ) ; exec sleep 78"
    started = paddock("exec", "-d", box, "--", "bash", "-c", hidden)
    assert started.returncode == 0, started.stderr
    assert wait_until(lambda: "sleep 78" in paddock("ps", box).stdout)
    assert wait_until(lambda: "77" in paddock("ps", box).stdout)
    shown = paddock("ps", box).stdout
    assert "\x1b" not in shown
    assert shown.splitlines()[1].split()[:2] == ["1", "0"]
    found = document("ps", box)
    assert isinstance(found, list)
    assert {process["uid"] for process in found[1:]} == {1000}
    assert all(process["parent"] in {other["pid"] for other in found} for process in found[1:])


def test_inspect_tells_limits_times_and_walls_of_the_living_and_of_the_dead(box: str) -> None:
    known = document("inspect", box)
    assert isinstance(known, dict)
    assert known["sandbox"]["id"] == box
    assert {check["status"] for check in known["posture"]} == {"ok"}
    assert {check["name"] for check in known["posture"]} >= {"capabilities", "system calls", "namespaces"}
    assert known["usage"] is not None
    shown = paddock("inspect", box)
    assert shown.returncode == 0
    assert "ISOLATION" in shown.stdout
    paddock("kill", box)
    assert re.search("^state +killed: .*killed", paddock("inspect", box).stdout, re.MULTILINE)


def test_logs_are_kept_bounded_and_followed(box: str) -> None:
    script = (
        "for i in 1 2 3 4; do echo out $i; echo err $i >&2; done; while ! test -e go; do sleep 0.05; done; echo late"
    )
    command = paddock("exec", "-d", box, "--", "sh", "-c", script).stdout.strip()
    assert command.startswith("ex_")
    # "err 4" is the last that it says, and may come after "out 4" was seen.
    assert wait_until(lambda: paddock("logs", box, command).stderr.count("\n") == 4)
    kept = paddock("logs", box, command[:-2])
    assert (kept.stdout, kept.stderr) == (
        "out 1\nout 2\nout 3\nout 4\n",
        "err 1\nerr 2\nerr 3\nerr 4\n",
    )
    assert paddock("logs", box, command, "--head", "1").stdout == "out 1\n"
    assert paddock("logs", box, command, "--tail", "2").stderr == "err 3\nerr 4\n"
    assert command in paddock("logs", box).stdout
    with subprocess.Popen(
        [sys.executable, "-m", "paddock", "logs", box, "-f", "--tail", "1"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as following:
        assert following.stdout
        assert following.stdout.readline() == "out 4\n"
        assert paddock("exec", box, "--", "touch", "go").returncode == 0
        assert following.stdout.read() == "late\n"
        assert following.wait(60) == 0
    said = document("logs", box, command)
    assert isinstance(said, dict)
    assert said["stdout"].endswith("late\n")


def test_logs_of_what_is_not_kept_say_so(box: str) -> None:
    done = paddock("logs", box, "ex_0000000000000000")
    assert done.returncode == 125
    assert "nothing is kept" in done.stderr
    assert paddock("logs", box, "../../x").returncode == 125
    assert paddock("logs", "-f", box).returncode == 125


def test_what_a_result_had_no_room_for_is_in_the_logs(sandbox: SandboxFactory) -> None:
    made = sandbox(persistent=True, ttl_seconds=120)
    result = made.exec("seq 100000", capture_bytes=100)
    with made.output(result.id) as reader:
        assert b"".join(reader) == "".join(f"{n}\n" for n in range(1, 100001)).encode()


def test_stats_are_lines_of_json_or_a_table(box: str) -> None:
    done = paddock("stats", box, "--once", "--json")
    sample = json.loads(done.stdout)
    assert sample["sandbox"] == box
    assert set(sample) == {"at", "sandbox", "name", "cpu", "usage", "limits"}
    assert box in paddock("stats", box).stdout
    assert paddock("stats", "none", "--once").returncode == 125


def test_stats_without_a_sandbox_say_what_makes_one(sandbox: SandboxFactory) -> None:
    sandbox().kill()
    done = paddock("stats")
    assert (done.stdout, done.stderr) == ("", "paddock: no sandboxes run: paddock create makes one\n")


def test_why_explains_a_death_and_what_was_refused(box: str) -> None:
    assert "is running" in paddock("why", box).stdout
    assert paddock("exec", "--timeout", "0.2s", box, "--", "sleep", "60").returncode == 137
    assert paddock("cp", f"{box}:/none", "/tmp/x").returncode == 125
    paddock("kill", box)
    told = paddock("why", box).stdout
    me = pwd.getpwuid(os.getuid()).pw_name
    assert re.search(f"because: .*killed by {me}\n", told)
    assert f" {me} " in paddock("audit", "ls", box, "--principal", me).stdout
    assert re.search(f"^owner +{me}$", paddock("inspect", box).stdout, re.MULTILINE)
    nobody = paddock("audit", "ls", "--principal", "no-such-user")
    assert (nobody.returncode, "this machine has no user 'no-such-user'" in nobody.stderr) == (2, True)
    assert "sleep 60  limit: time" in told
    assert "give it longer with --timeout" in told
    assert "No such file or directory: /none" in told
    explained = document("why", box)
    assert isinstance(explained, dict)
    assert explained["sandbox"]["state"] == "killed"
    assert explained["advice"]


def test_why_names_the_limit_that_ended_it(sandbox: SandboxFactory) -> None:
    made = sandbox(persistent=True, ttl_seconds=3)
    assert wait_until(lambda: made.refresh().state == "killed")
    told = paddock("why", made.id).stdout
    assert "limit: ttl" in told
    assert "give the sandbox longer with --ttl" in told


def test_why_says_which_rule_refused_a_create(sandbox: SandboxFactory) -> None:
    sandbox()  # skips where there is none to be had
    refused = paddock("create", "--memory", "99999999g")
    assert refused.returncode == 125
    told = paddock("why").stdout
    assert "denied by limits" in told
    assert "is above the limit" in told


def test_the_record_is_listed_by_filters_and_shown(box: str) -> None:
    paddock("exec", box, "--", "echo", "\x1b[31m")
    listed = paddock("audit", "ls", box, "--action", "exec")
    assert listed.returncode == 0
    assert "\x1b" not in listed.stdout
    last = [line for line in listed.stdout.splitlines() if "exec.streams" not in line][-1]
    assert "exit code 0" in last
    shown = paddock("audit", "show", last.split()[-1])
    assert "allowed by own-uid" in shown.stdout
    assert box in shown.stdout
    records = document("audit", "ls", "--since", "1h", "-n", "3")
    assert isinstance(records, list)
    assert len(records) == 3
    assert paddock("audit", "show", "nothing").returncode == 125
    assert paddock("audit", "ls", "--since", "yesterday").returncode == 2


def test_bounds_are_lines_and_a_line_without_end_is_cut() -> None:
    data = [b"a\nb", b"\nc\nd"]
    assert b"".join(bounded(data, 2, None)) == b"a\nb\n"
    assert b"".join(bounded(data, None, 2)) == b"c\nd"
    assert b"".join(bounded(data, None, None)) == b"a\nb\nc\nd"
    endless = (b"x" * 65536 for _ in range(100))
    assert len(b"".join(bounded(endless, None, 3))) <= 4 * 65536
