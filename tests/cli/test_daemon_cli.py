"""`paddock daemon` against real daemons. Each call is a process of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from paddock import Sandbox
from paddock.client import default_transport, stop_daemon
from tests.conftest import private_state


@pytest.fixture
def state_dir() -> Generator[Path]:
    with private_state() as directory:
        yield directory


def paddock(state_dir: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "paddock", *arguments],
        env=os.environ | {"PADDOCK_STATE_DIR": str(state_dir)},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


def answer(state_dir: Path, *arguments: str) -> dict[str, Any]:
    """The document that `--json` prints."""
    done = paddock(state_dir, "daemon", *arguments, "--json")
    assert (done.returncode, done.stderr) == (0, "")
    return json.loads(done.stdout)


def test_status_stop_and_logs_start_no_daemon_and_write_nothing(tmp_path: Path) -> None:
    nowhere = tmp_path / "state"
    status = paddock(nowhere, "daemon", "status")
    assert (status.returncode, status.stdout) == (0, f"no daemon runs for {nowhere}; the next use starts one\n")
    assert answer(nowhere, "status") == {"running": False, "state_dir": str(nowhere), "daemon": None}
    assert paddock(nowhere, "daemon", "stop").stdout == "no daemon was running\n"
    assert answer(nowhere, "stop") == {"was_running": False}
    assert paddock(nowhere, "daemon", "logs").stdout == ""
    assert answer(nowhere, "logs") == {"lines": []}
    assert not nowhere.exists()


def test_status_names_the_daemon_and_counts_the_programs_that_use_it(state_dir: Path) -> None:
    default_transport(state_dir).control("status")
    said = answer(state_dir, "status")
    daemon = said["daemon"]
    assert said["running"] is True
    assert {"stops", "last_stop"} <= daemon.keys()
    assert (daemon["state_dir"], daemon["sessions"], daemon["idle_exit_seconds"]) == (str(state_dir), 1, 600)
    lines = paddock(state_dir, "daemon", "status").stdout.splitlines()
    assert lines[0].startswith(f"running   pid {daemon['pid']}, paddock ")
    assert lines[1:] == [
        f"state     {state_dir}",
        "used by   1 other programs, 0 requests under way",
        "leaves    600 s after the last program and the last running sandbox",
        *([f"ends      with the control group {daemon['control_group']}"] if daemon["control_group"] else []),
    ]
    assert f":{daemon['control_group'] or '/'}\n" in Path(f"/proc/{daemon['pid']}/cgroup").read_text()


LEAVES = """
import os, socket
from paddock.model import codec
from paddock.wire import PROTOCOL, Connection, Kind
listener = socket.socket(socket.AF_UNIX)
listener.bind("daemon.sock")
listener.listen()
print("listening", flush=True)
client = Connection(listener.accept()[0])
client.receive()
welcome = codec.Welcome(protocol=PROTOCOL, version="", instance="gone", pid=os.getpid(), differs=(), notices=())
client.send(Kind.HELLO, 0, codec.encode(welcome))
client.receive()
os.unlink("daemon.sock")
"""


@pytest.mark.parametrize(("action", "said"), [("status", "no daemon runs"), ("stop", "stopped")])
def test_a_daemon_that_leaves_before_it_answers_is_none_that_was_lost(action: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "daemon.lock").touch()
    with subprocess.Popen([sys.executable, "-c", LEAVES], cwd=tmp_path, stdout=-1) as daemon:
        assert daemon.stdout is not None
        assert daemon.stdout.readline() == b"listening\n"
        done = paddock(tmp_path, "daemon", action)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(said)


def test_restart_replaces_the_daemon_and_keeps_what_runs_and_stop_ends_it(state_dir: Path) -> None:
    transport = default_transport(state_dir)
    ends = Sandbox.create(level="jail", ttl_seconds=300, transport=transport)
    stays = Sandbox.create(level="jail", ttl_seconds=300, persistent=True, transport=transport)
    old = answer(state_dir, "status")["daemon"]
    new = answer(state_dir, "restart")["daemon"]
    assert new["pid"] != old["pid"]
    assert ends.exec("echo still").stdout == "still\n"
    assert paddock(state_dir, "daemon", "stop").stdout == "stopped\n"
    assert answer(state_dir, "status")["running"] is False
    assert [box.id for box in Sandbox.list(transport=transport)] == [stays.id]
    stays.kill()


def test_logs_prints_the_last_lines_and_nothing_that_steers_a_terminal(tmp_path: Path) -> None:
    (tmp_path / "daemon.log.1").write_text("first\nsecond\n")
    (tmp_path / "daemon.log").write_text("third\n\x1b[2Jfourth\n")
    assert answer(tmp_path, "logs", "-n", "3") == {"lines": ["second", "third", "\x1b[2Jfourth"]}
    shown = paddock(tmp_path, "daemon", "logs", "-n", "2").stdout.splitlines()
    assert shown[0] == "third"
    assert "\x1b" not in shown[1]
    assert paddock(tmp_path, "daemon", "logs", "-n", "0").returncode == 2


def test_logs_follows_over_a_restart_and_a_new_file_and_ends_with_control_c(state_dir: Path) -> None:
    default_transport(state_dir).control("status")
    command = [sys.executable, "-m", "paddock", "daemon", "logs", "-f", "-n", "1"]
    environ = os.environ | {"PADDOCK_STATE_DIR": str(state_dir)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environ, text=True) as follows:
        assert follows.stdout is not None
        assert "listens" in follows.stdout.readline()
        stop_daemon(state_dir)
        default_transport(state_dir).control("status")
        while "listens" not in follows.stdout.readline():
            pass
        log = state_dir / "daemon.log"
        with log.open("a") as old:  # a daemon writes its last line before the next one renames the file
            old.write("the last of the old file\n")
        log.rename(state_dir / "daemon.log.1")
        log.write_text("of the new file\n")
        assert follows.stdout.readline() == "the last of the old file\n"
        assert follows.stdout.readline() == "of the new file\n"
        follows.send_signal(signal.SIGINT)
        assert follows.wait(60) == 130
    assert paddock(state_dir, "daemon", "logs", "-f", "--json").returncode == 125


def test_the_log_has_a_bound_and_the_one_before_it_is_kept(state_dir: Path) -> None:
    line = "an old line" * 100 + "\n"
    (state_dir / "daemon.log.1").write_text("an older line\n")
    (state_dir / "daemon.log").write_text(line * ((10 << 20) // len(line) + 1))
    default_transport(state_dir).control("status")
    old, new = state_dir / "daemon.log.1", state_dir / "daemon.log"
    assert old.read_text().startswith(line)
    assert old.stat().st_size > 10 << 20
    assert new.stat().st_size < 10 << 10
    assert new.stat().st_mode & 0o777 == 0o600, "as every other file of the state directory"
    pid = answer(state_dir, "status")["daemon"]["pid"]
    assert {os.readlink(f"/proc/{pid}/fd/{number}") for number in (1, 2)} == {str(new)}, "what dies loudly is found"
    shown = answer(state_dir, "logs", "-n", "100000")["lines"]
    assert shown[0] == line[:-1]
    assert "listens" in shown[-1]


def test_a_mistake_in_the_settings_is_told_by_restart_and_logs_and_status_still_answer(state_dir: Path) -> None:
    default_transport(state_dir).control("status")
    (state_dir / "config.toml").write_text("levle = 1\n")
    refused = paddock(state_dir, "daemon", "restart")
    assert refused.returncode == 125
    assert "there is no key 'levle'" in refused.stderr
    assert answer(state_dir, "status")["running"] is False
    logged = paddock(state_dir, "daemon", "logs").stdout
    assert "the daemon leaves: its code or config.toml has changed" in logged
    assert "there is no key 'levle'" in logged
    (state_dir / "config.toml").unlink()
    assert answer(state_dir, "restart")["running"] is True
    stop_daemon(state_dir)
