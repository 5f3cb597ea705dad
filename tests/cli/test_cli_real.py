"""The command line on real sandboxes, each call a process of its own."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest

from paddock import __version__
from paddock.backends.jail import JailBackend
from paddock.client import daemon_status, stop_daemon
from paddock.storage import open_pool, prepare
from tests import pools
from tests.client.test_exports import HEAVY_FOR_A_CLIENT, loaded
from tests.conftest import SandboxFactory

Paddock = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def paddock(shared_state: Path) -> Paddock:
    def run(*arguments: str, input: str = "") -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "paddock", *arguments],
            input=input,
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )

    return run


def living(paddock: Paddock) -> list[str]:
    return [info["id"] for info in json.loads(paddock("ls", "--json").stdout)]


def test_a_sandbox_is_made_used_and_killed_by_different_processes(paddock: Paddock, tmp_path: Path) -> None:
    made = paddock("create", "--name", "box", "--ttl", "2m")
    assert made.returncode == 0, made.stderr
    name = made.stdout.strip()
    assert name in paddock("ls").stdout
    assert paddock("exec", "box", "--", "sh", "-c", "cat > kept; exit 9", input="typed").returncode == 9
    assert paddock("exec", name[:-2], "--", "cat", "kept").stdout == "typed"
    assert paddock("cp", "box:kept", str(tmp_path)).returncode == 0
    assert (tmp_path / "kept").read_text() == "typed"
    assert paddock("extend", "box", "2h").stdout.strip() == f"{name} ends in 2 h"
    (tmp_path / "tool.py").write_text("print(1)")
    assert paddock("cp", str(tmp_path / "tool.py"), "box:/workspace").returncode == 0
    assert paddock("exec", "box", "--", "cat", "/workspace/tool.py").stdout == "print(1)"
    assert paddock("cp", str(tmp_path / "tool.py"), "box:new/dir/").returncode == 0
    assert paddock("exec", "box", "--", "cat", "new/dir/tool.py").stdout == "print(1)"
    (tmp_path / "tree" / "sub").mkdir(parents=True)
    (tmp_path / "tree" / "sub" / "file").write_text("x")
    assert paddock("cp", str(tmp_path / "tree"), "box:/workspace/tree").returncode == 0
    assert paddock("cp", "box:/workspace/tree", str(tmp_path / "back")).returncode == 0
    paddock("exec", "box", "--", "sh", "-c", "mkdir holes; truncate -s 2M holes/hole")
    for source in ("box:/workspace/holes/hole", "box:/workspace/holes"):
        assert paddock("cp", "--max", "1", source, str(tmp_path / "hole")).returncode == 125
        assert not (tmp_path / "hole").exists()
    assert paddock("cp", "--max", "2", "box:/workspace/holes/hole", str(tmp_path / "hole")).returncode == 0
    assert (tmp_path / "hole").stat().st_size == 2 << 20
    assert (tmp_path / "back" / "sub" / "file").read_text() == "x"
    assert paddock("kill", "box").stdout.strip() == name
    assert name not in living(paddock)
    assert name in paddock("ls", "--all").stdout
    gone = paddock("exec", name, "--", "true")
    assert gone.returncode == 125
    assert re.search(rf"{name} \(box\) ended at .* UTC: killed by .*\n  try: create another one", gone.stderr)


def test_a_command_waits_for_its_approval_and_why_says_how_to_give_it(
    paddock: Paddock, sandbox: SandboxFactory, shared_state: Path
) -> None:
    box = sandbox(policy={"commands": {"approve": [{"prefix": ["touch"]}]}})
    refused = paddock("exec", box.id, "--", "touch", "kept")
    assert refused.returncode == 125
    id = re.findall(r"paddock approvals approve (ap_\w+)", refused.stderr)[0]
    why = paddock("why", box.id).stdout
    assert f"{box.id} waits for your answer: the command touch kept\n  to do: paddock approvals approve {id}" in why
    assert "nothing was refused" in why
    assert "refused: paddock why" not in refused.stderr
    argv = [sys.executable, "-m", "paddock", "exec", "--wait", box.id, "--", "touch", "kept"]
    with subprocess.Popen(argv, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as waiting:
        assert waiting.stderr is not None
        assert f"Waiting for: paddock approvals approve {id}" in waiting.stderr.readline()
        assert f"approved {id}: the command touch kept" in paddock("approvals", "approve", id).stdout
        assert waiting.wait(60) == 0
        assert waiting.stderr.read() == ""  # the answer was yes: nothing was refused
    assert box.files.exists("kept")
    assert "approvals approve" not in paddock("why", box.id).stdout


def test_the_question_of_an_ended_sandbox_is_withdrawn(
    paddock: Paddock, sandbox: SandboxFactory, tmp_path: Path, shared_state: Path
) -> None:
    box = sandbox(policy={"commands": {"approve": [{"prefix": ["touch"]}]}})
    argv = [sys.executable, "-m", "paddock", "exec", "--wait", box.id, "--", "touch", "kept"]
    with subprocess.Popen(argv, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as waiting:
        assert waiting.stderr is not None
        assert "Waiting for: " in waiting.stderr.readline()
        box.kill()
        assert waiting.wait(60) == 125
        assert f"{box.id} ended at " in waiting.stderr.read()
    policy = tmp_path / "policy.yaml"
    policy.write_text("commands: {approve: [{prefix: [touch]}]}")
    refused = paddock("run", "--policy", str(policy), "--", "touch", "x")
    assert "try: paddock run --wait, and answer" in refused.stderr  # its sandbox is gone
    assert paddock("approvals", "ls").stdout == ""


def test_a_fork_stays_whatever_its_parent_is(paddock: Paddock, sandbox: SandboxFactory) -> None:
    """That of a parent that ends with the program that made it would end with `paddock fork`, which is at once."""
    parent = sandbox()
    parent.filesystem.write("kept", "the parent's")
    forked = paddock("fork", parent.id)
    assert forked.returncode == 0, forked.stderr
    child = forked.stdout.strip()
    assert paddock("exec", child, "--", "cat", "kept").stdout == "the parent's"
    parent.kill()
    assert paddock("exec", child, "--", "cat", "kept").stdout == "the parent's"
    assert paddock("kill", child).returncode == 0


def test_a_sandbox_is_paused_and_resumed_by_different_processes(paddock: Paddock) -> None:
    name = paddock("create", "--name", "sleeper", "--ttl", "5m", "--idle", "2m").stdout.strip()
    paused = json.loads(paddock("pause", "sleeper", "--json").stdout)
    assert [(info["id"], info["state"], info["spec"]["idle_seconds"]) for info in paused] == [(name, "paused", 120)]
    (listed,) = (info for info in json.loads(paddock("ls", "--json").stdout) if info["id"] == name)
    assert listed["state"] == "paused"
    assert listed["kept_until"] == listed["expires_at"] == pytest.approx(time.time() + 30 * 86_400, abs=60)
    assert listed["left_seconds"] == pytest.approx(300, abs=60)
    (row,) = (row for row in paddock("ls").stdout.splitlines() if row.startswith(name))
    assert f"paused, kept until {time.strftime('%Y-%m-%d %H:', time.localtime(listed['kept_until']))}" in row
    assert json.loads(paddock("inspect", name, "--json").stdout)["sandbox"]["state"] == "paused"
    assert paddock("resume", "sleeper").stdout.strip() == name
    assert paddock("pause", "sleeper").stdout.strip() == name
    assert paddock("exec", "sleeper", "--", "echo", "awake").stdout == "awake\n"
    assert paddock("exec", "-d", "sleeper", "--", "sleep", "600").returncode == 0
    refused = paddock("pause", "sleeper")
    assert (refused.returncode, refused.stdout) == (125, "")
    assert "1 command runs in sandbox sleeper and would stand still: sleep 600 (ex_" in refused.stderr
    assert "try: pause it all the same: paddock pause sleeper --force" in refused.stderr
    assert paddock("pause", "sleeper", "--force").stdout.strip() == name
    assert paddock("kill", "sleeper").returncode == 0
    dead = paddock("pause", name, "--json")
    assert (dead.returncode, json.loads(dead.stdout)["error"]["code"]) == (125, "sandbox_died")


def test_run_leaves_nothing(paddock: Paddock) -> None:
    done = paddock("run", "--", "sh", "-c", "echo out; exit 4")
    assert (done.stdout, done.returncode) == ("out\n", 4)
    assert living(paddock) == []
    assert paddock("run", "--", "no-such-program").returncode == 127
    assert paddock("run", "--cwd", "/no/such", "--", "true").returncode == 125
    assert paddock("run", "--", "/etc/hostname").returncode in (126, 127)


def test_a_run_that_fails_is_kept_where_that_was_asked_for(paddock: Paddock) -> None:
    failed = paddock("run", "--keep", "--ttl", "2m", "--", "sh", "-c", "echo why > log; exit 3")
    assert failed.returncode == 3
    (id,) = living(paddock)
    assert failed.stderr == f"paddock: {id} is kept for 2 min: paddock exec {id} -- COMMAND\n"
    assert paddock("exec", id, "--", "cat", "log").stdout == "why\n"
    assert paddock("kill", id).returncode == 0
    assert paddock("run", "--keep", "--", "true").returncode == 0
    assert living(paddock) == []


def test_an_empty_list_says_so_beside_the_output(
    paddock: Paddock, state_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PADDOCK_STATE_DIR", str(state_dir))
    for verb, said in {
        "ls": "no sandboxes: paddock create makes one",
        "secret ls": "no secrets: paddock secret set NAME",
        "workspace ls": "no workspaces: paddock up --task NAME",
    }.items():
        empty = paddock(*verb.split())
        assert (empty.stdout, empty.stderr) == ("", f"paddock: {said}\n")
        empty = paddock(*verb.split(), "--json")
        assert (json.loads(empty.stdout), empty.stderr) == ([], "")


def test_more_processors_than_the_machine_has_are_a_warning(paddock: Paddock) -> None:
    cores = os.cpu_count() or 1
    much = paddock("run", "--cpus", str(cores + 50), "--", "true")
    assert (much.returncode, much.stdout) == (0, "")
    assert f"limits.cpus is {cores + 50}, and this machine has {cores}" in much.stderr


def test_templates_are_listed_with_their_state(paddock: Paddock) -> None:
    assert paddock("run", "--", "true").returncode == 0
    listed = {one["name"]: one["state"] for one in json.loads(paddock("template", "ls", "--json").stdout)}
    assert {"code-interpreter", "debian", "host"} <= set(listed)
    assert listed["host"] == "built"
    assert "host" in paddock("template", "ls").stdout


def test_a_limit_that_struck_is_explained(paddock: Paddock) -> None:
    done = paddock("run", "--timeout", "0.3s", "--", "sleep", "60")
    assert done.returncode == 128 + signal.SIGKILL
    assert "limit of time" in done.stderr
    assert "--timeout" in done.stderr


def test_control_c_leaves_nothing(paddock: Paddock, shared_state: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "paddock", "run", "--", "sh", "-c", "echo ready; sleep 60"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        timer = threading.Timer(60, process.kill)
        timer.start()
        assert process.stdout
        assert process.stderr
        assert process.stdout.readline() == b"ready\n"
        process.send_signal(signal.SIGINT)
        assert process.stderr.read() == b""
        timer.cancel()
    assert process.returncode == 130
    assert living(paddock) == []


def test_doctor_and_the_audit_log_are_content(paddock: Paddock, shared_state: Path) -> None:
    done = paddock("doctor", "--level", "jail")
    assert done.returncode == 0, done.stdout
    assert re.search(r"^(ok|weak) +jail +\d+\.\d s ", done.stdout, re.MULTILINE)
    serves = daemon_status(shared_state)
    assert serves is not None
    said = rf"pid {serves.pid}, paddock {re.escape(__version__)}, since [-0-9]+ [:0-9]+, of {shared_state}"
    assert re.search(said, " ".join(done.stdout.split()))
    assert paddock("audit", "verify").stdout.startswith("ok: ")


def test_garbage_is_shown_and_collected_and_the_pool_is_looked_through(paddock: Paddock, shared_state: Path) -> None:
    old = "tp_host_000000000000"
    stop_daemon(shared_state)  # the supervisor serves one client
    asyncio.run(_make_tree(shared_state, old))
    seen = json.loads(paddock("gc", "--dry-run", "--json").stdout)
    assert old in [item["what"] for item in seen["items"] if item["kind"] == "template" and not item["kept_because"]]
    shown = paddock("gc", "--dry-run").stdout
    assert (old in shown, "would go" in shown, "a newer version has replaced it" in shown) == (True, True, True)
    assert old in paddock("gc").stdout
    assert old not in paddock("gc", "--dry-run").stdout
    looked = paddock("doctor", "--storage", "--repair")
    assert looked.returncode == 0, looked.stdout
    assert not [
        check for check in json.loads(paddock("doctor", "--storage", "--json").stdout) if check["status"] == "missing"
    ]
    assert paddock("doctor", "--repair").returncode == 2


async def _make_tree(state_dir: Path, name: str) -> None:
    backend = JailBackend(state_dir)
    try:
        pool = open_pool(state_dir, prepare(state_dir), os.dup(await pools.descriptor(backend)))
        pool.create(name)
        pool.close()
    finally:
        await backend.aclose()


def test_the_state_directory_is_the_one_that_was_named(paddock: Paddock, shared_state: Path) -> None:
    assert (
        json.loads(paddock("doctor", "--level", "jail", "--json").stdout)["state_dir"]
        == os.environ["PADDOCK_STATE_DIR"]
    )


def test_a_mounted_directory_is_seen_and_stays_as_it_was(paddock: Paddock, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("host")
    tmp_path.chmod(0o755)
    done = paddock(
        "run", "--mount", str(tmp_path), "--", "sh", "-c", "cat file; echo inside > file; cat file; touch new"
    )
    if done.returncode == 125 and "id-mapped" in done.stderr:
        pytest.skip(done.stderr)  # such is the file system of this machine's /tmp
    assert (done.stdout, done.stderr, done.returncode) == ("hostinside\n", "", 0)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    assert (tmp_path / "file").read_text() == "host"
    refused = paddock("run", "--mount", f"{tmp_path}:/d:ro", "--", "touch", "/d/new")
    assert refused.returncode == 1
    assert paddock("run", "--mount", f"{tmp_path}:/d:rw", "--", "touch", "/d/new").returncode == 0
    assert (tmp_path / "new").exists()
    assert "mode" in paddock("audit", "ls", "--action", "sandbox.create", "--json").stdout
    assert paddock("run", "--mount", "/no/such", "--", "true").returncode == 125


def test_up_at_another_level_than_that_of_the_living_sandbox_is_refused(paddock: Paddock) -> None:
    assert paddock("up", "--task", "stays", "--level", "jail").returncode == 0
    try:
        refused = paddock("up", "--task", "stays", "--level", "process")
        assert refused.returncode != 0
        assert "the sandbox of stays is one of level jail" in refused.stderr
        assert "paddock kill stays && paddock up --task stays --level process" in refused.stderr
        assert paddock("up", "--task", "stays", "--level", "jail").returncode == 0
        assert paddock("up", "--task", "stays").returncode == 0
    finally:
        paddock("kill", "stays")
        assert paddock("workspace", "rm", "stays").returncode == 0


def test_a_run_over_a_directory_gives_what_changed(paddock: Paddock, sandbox: SandboxFactory, tmp_path: Path) -> None:
    sandbox()
    (tmp_path / "a").write_text("one\n")
    where, script = ("--mount", str(tmp_path)), "echo two >>a; touch new"
    shown = paddock("run", *where, "--diff", "--", "sh", "-c", f"{script}; exit 3")
    assert (shown.returncode, shown.stderr) == (3, "paddock: modified a\npaddock: added new\n")
    assert paddock("run", *where, "--patch", str(tmp_path / "p"), "--", "sh", "-c", script).returncode == 0
    assert "+two\n" in (tmp_path / "p").read_text()
    assert paddock("run", *where, "--patch", "-", "--", "sh", "-c", script).stdout == (tmp_path / "p").read_text()
    refused = paddock("run", *where, "--promote", "--", "sh", "-c", f"{script}; false")
    assert (refused.returncode, (tmp_path / "a").read_text()) == (1, "one\n")
    assert "nothing was promoted: the command ended with exit code 1" in refused.stderr
    (tmp_path / "p").unlink()
    promoted = paddock("run", *where, "--promote", "--", "sh", "-c", script)
    assert (promoted.returncode, promoted.stderr) == (0, "paddock: 2 changes promoted\n")
    assert (tmp_path / "a").read_text() == "one\ntwo\n"


def test_a_script_that_cannot_start_is_answered_with_what_is_missing(
    paddock: Paddock, sandbox: SandboxFactory, tmp_path: Path
) -> None:
    sandbox()
    script = tmp_path / "script"
    script.write_text("echo hello\n")
    for mode, hint in ((0o644, "chmod +x ./script"), (0o755, "put `#!/bin/sh` on the first line")):
        script.chmod(mode)
        done = paddock("run", "--mount", str(tmp_path), "--", "./script")
        assert done.returncode == 126
        assert f"try: {hint}" in done.stderr


def test_what_was_refused_is_said_once_and_why_knows_it(paddock: Paddock, sandbox: SandboxFactory) -> None:
    sandbox()
    ask = "import socket; socket.create_connection(('198.51.100.7', 80)).recv(1)"
    done = paddock("run", "--network", "api.github.com,pypi", "--", "python3", "-c", ask)
    said = re.search(
        r"^paddock: (\d+) requests? (?:was|were) refused: paddock why (sb_\w+)$", done.stderr, re.MULTILINE
    )
    assert said is not None, done.stderr
    assert "198.51.100.7" in paddock("why", said[2]).stdout
    done = paddock("run", "--network", "pypi", "--", "getent", "hosts", "host.example")
    told = paddock("why", done.stderr.split()[-1]).stdout
    assert "if it may: --network host.example, or {host: host.example} in `egress.allow`" in told
    assert "refused" not in paddock("run", "--network", "pypi", "--", "true").stderr


def test_a_port_of_this_machine_leads_inside(paddock: Paddock, sandbox: SandboxFactory) -> None:
    box = sandbox()
    server = box.start("echo there >index.html; exec python3 -u -m http.server 8000", background=True)
    next(server.stdout.lines())  # it listens
    server.close()
    argv = [sys.executable, "-u", "-m", "paddock", "forward", box.id, "8000"]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as forward:
        assert forward.stdout is not None
        url = forward.stdout.readline().strip()
        with urllib.request.urlopen(url) as answer:
            assert answer.read() == b"there\n"
        taken = paddock("forward", box.id, f"{url.rsplit(':')[-1]}:8000")
        assert (taken.returncode, taken.stderr) == (
            125,
            f"paddock: port {url.rsplit(':')[-1]} of 127.0.0.1 cannot be used: Address already in use"
            " [invalid_argument]\n"
            f"  try: another one: paddock forward {box.id} 8000\n",
        )
        forward.send_signal(signal.SIGINT)
        assert forward.wait() == 130


def test_what_the_owner_has_set_is_read_at_the_first_use_and_a_mistake_in_it_is_refused(
    paddock: Paddock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PADDOCK_STATE_DIR", str(tmp_path))
    (tmp_path / "config.toml").write_text('level = "microvm"\n')
    (tmp_path / "levels.json").write_text("{}")
    assert "is a microvm from now on" in paddock("ls").stderr
    assert paddock("ls").stderr == "paddock: no sandboxes: paddock create makes one\n"
    (tmp_path / "config.toml").write_text("level = 1\n")
    stop_daemon(tmp_path)  # it reads the file when it starts
    refused = paddock("ls")
    assert refused.returncode == 125
    assert f"{tmp_path}/config.toml: level = 1 isn't valid" in refused.stderr
    (tmp_path / "config.toml").unlink()


def test_running_a_command_loads_nothing_of_the_daemon(shared_state: Path) -> None:
    run = "from paddock.cli import main; assert main(['run', '--', 'true']) == 0"
    assert set(loaded(run, HEAVY_FOR_A_CLIENT)) <= {
        "argparse",
        "threading",
    }  # its options, and the command's two streams


def test_run_with_an_image_as_of_docker_says_how_it_is_written(paddock: Paddock, sandbox: SandboxFactory) -> None:
    sandbox()
    done = paddock("run", "python:3.12", "python", "-V")
    assert done.returncode == 127
    assert "paddock run --image python:3.12 -- COMMAND" in done.stderr
    assert "docker://" not in paddock("run", "no-such-program").stderr
    assert "registry localhost:1 " in paddock("run", "--image", "localhost:1/python", "--", "true").stderr
    named = paddock("run", "--template", "python:3.12", "--", "true")
    assert "an image of a registry is docker://python:3.12" in named.stderr
    assert 'write HOME="$HOME"' in paddock("run", "--env", "HOME", "--", "true").stderr


def test_what_is_neither_a_workspace_nor_a_sandbox_is_called_so(paddock: Paddock, sandbox: SandboxFactory) -> None:
    sandbox()
    for verb in (("patch", "nope"), ("branch", "nope", "x"), ("pr", "nope", "--title", "x")):
        assert "no workspace and no sandbox 'nope'" in paddock(*verb).stderr
    image = paddock("image", "pull", "python:3.12").stderr
    assert "'python:3.12' names no image" in image
    assert "try: docker://python:3.12\n" in image
