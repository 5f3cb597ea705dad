"""Every verb of the SDK, once, by the names of today: a program that pyright's strict mode and `-W error` accept."""

from __future__ import annotations

import contextlib
import sys
import tempfile
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path

import paddock
from paddock import Limits, Mount, MountMode, PtySize, Sandbox, Snapshot, State, Workspace
from paddock.errors import ApprovalNeededError
from paddock.model import ExecResult

SERVER = "cd /tmp && echo hello >index.html && exec python3 -u -m http.server 8000"


def commands(sandbox: Sandbox) -> None:
    result: ExecResult = sandbox.exec("echo out; echo err >&2", timeout=30, env={"A": "1"}, cwd="/workspace")
    assert (result.exit_code, result.stdout, result.stderr) == (0, "out\n", "err\n")
    lines: list[str] = []
    errors: list[str] = []
    watched = sandbox.exec(
        ["sh", "-c", "cat; echo e >&2"], input="a\nb", on_stdout=lines.append, on_stderr=errors.append
    )
    assert (lines, errors, watched.stdout) == (["a", "b"], ["e"], "a\nb")
    missing = [sandbox.exec(["nothing"], on_stderr=how) for how in (None, errors.append)]
    assert [(one.exit_code, one.stderr) for one in missing] == [(127, f"{errors[-1]}\n")] * 2
    assert sandbox.run_code("print(6 * 7)").stdout == "42\n"
    assert sandbox.run_code("echo $((6 * 7))", language="sh", timeout="30s").stdout == "42\n"
    with sandbox.start(["sort"], stdin=True, timeout=timedelta(seconds=30)) as process:
        with contextlib.suppress(TimeoutError):
            process.wait(timeout=0.01)
            raise AssertionError
        process.stdin.write("b\na\n")
        process.stdin.close()
        assert process.stdout.read() == b"a\nb\n"
        assert process.exit_code is None
        assert process.wait("30s").exit_code == 0
        assert process.exit_code == 0
    with sandbox.start("cat; echo no >&2", stdin=True) as both:
        assert both.communicate("in") == (b"in", b"no\n")
        assert both.exit_code == 0
    with sandbox.start("head -c 9") as reader:
        assert reader.stdout.read_all() == b""
    with sandbox.start("stty size", pty=PtySize(rows=40, columns=120)) as terminal:
        assert next(terminal.stdout.lines()).split() == ["40", "120"]
    with contextlib.suppress(paddock.CommandFailedError):
        sandbox.exec("exit 3", check=True)
        raise AssertionError


def background(sandbox: Sandbox) -> None:
    server = sandbox.start(SERVER, background=True)
    assert next(server.stdout.lines()).startswith("Serving HTTP")  # it listens
    with sandbox.forward(8000) as url, urllib.request.urlopen(url) as answer:
        assert answer.read() == b"hello\n"
    with sandbox.dial(8000) as connection:
        connection.write("GET / HTTP/1.0\r\n\r\n")
        connection.write_eof()
        assert connection.read().startswith(b"HTTP/1.0 200")
    server.close()
    (info,) = [one for one in sandbox.processes() if one.background]
    with sandbox.output(info.id) as kept:
        assert kept.read(7) == b"Serving"
    again = sandbox.attach(info.id)
    sandbox.signal(info.id, 15)
    assert again.wait().signal == 15
    again.close()


def files(sandbox: Sandbox, here: Path) -> None:
    files = sandbox.files
    files.write("a.txt", "one\n")
    with files.open("a.txt", "ab") as writer:
        writer.write(b"two\n")
    with files.open("b.bin", "wb", permissions=0o600) as writer:
        writer.write(b"\0\1")
    with files.open("a.txt", "rb", offset=4) as reader:
        assert reader.read() == b"two\n"
    assert (files.read_text("a.txt"), files.read("b.bin")) == ("one\ntwo\n", b"\0\1")
    assert files.exists("a.txt")
    assert not files.exists("nothing")
    files.make_dir("d")
    files.copy("a.txt", "d/c.txt")
    files.move("d/c.txt", "d/e.txt")
    files.chmod("d/e.txt", 0o644)
    assert [info.name for info in files.list("d")] == ["e.txt"]
    assert files.stat("d/e.txt").size_bytes == 8
    assert len(files.find(".", "*.txt")) == 2
    assert files.grep("two", name="e.txt")[0].line_number == 2
    files.as_user("root").chown("d/e.txt", 0)
    files.as_user("root").write("/root.txt", "", mode=0o600)
    for path, kind in (("nothing", FileNotFoundError), ("d", IsADirectoryError), ("/root.txt", PermissionError)):
        with contextlib.suppress(kind):
            files.read(path)
            raise AssertionError(path)
    (here / "up").mkdir()
    (here / "up" / "f").write_text("up")
    moved: list[int] = []
    files.upload(here / "up", "up", on_progress=moved.append)
    assert files.download("up", here / "down").entries >= 1
    assert sum(moved) > 0
    assert files.read_to("up/f", here / "f") == 2
    files.write_from("g", here / "f")
    files.remove("d", recursive=True)


def state(sandbox: Sandbox) -> None:
    snapshot = sandbox.snapshot("kept")
    sandbox.exec("rm -f a.txt", check=True)
    sandbox.rollback(snapshot)
    assert sandbox.files.exists("a.txt")
    assert [one.id for one in sandbox.snapshots()] == [snapshot.id]
    with Sandbox.create(snapshot=snapshot) as other, sandbox.fork(ttl="2m") as child:
        assert other.files.exists("a.txt")
        assert child.files.exists("a.txt")
    for one in sandbox.fork(2):
        one.kill()
    assert Snapshot.get("kept").info == snapshot.info
    snapshot.delete()
    sandbox.delete_snapshot(sandbox.snapshot())
    assert not Snapshot.list()
    sandbox.pause()
    assert sandbox.state is State.PAUSED
    sandbox.resume()
    sandbox.extend("5m")
    assert sandbox.refresh().state is State.RUNNING
    assert Sandbox.connect(sandbox.id).id in [one.id for one in Sandbox.list()]
    assert sandbox.info.created < sandbox.info.expires
    assert sandbox.info.ended is None
    assert sandbox.usage().strikes == {}
    assert any(record.action == "exec.run" for record in sandbox.audit("exec"))
    assert sandbox.audit(limit=1)


def built(context: Path) -> None:
    (context / "Dockerfile").write_text("FROM host\nENV A=1\nRUN echo built >made\n")
    lines: list[str] = []
    snapshot = Snapshot.build(context, name="built", on_output=lines.append)
    with Sandbox.create(snapshot=snapshot) as sandbox:
        assert sandbox.exec("cat made; echo $A").stdout == "built\n1\n"
        again = sandbox.snapshot(env={"B": "2"}, workdir="/tmp", user="user")
    again.delete()
    snapshot.delete()


def mounts(project: Path) -> None:
    (project / "README").write_text("before\n")
    how = [Mount(source=str(project)), Mount(source=str(project), target="/srv/ro", mode=MountMode.READ_ONLY)]
    with Sandbox.create(mounts=how) as sandbox:
        sandbox.exec("echo after >README", check=True)
        assert sandbox.diff_mount(target="/workspace", patch=True).patch
        sandbox.promote_mount(target="/workspace")
    assert (project / "README").read_text() == "after\n"
    with Sandbox.create(mounts={str(project): "/workspace"}) as sandbox:
        assert sandbox.files.read_text("README") == "after\n"


def network() -> None:
    with Sandbox.create(network=["pypi", "npm=https://npm.example.com", "api.github.com"]) as sandbox:
        assert sandbox.policy is not None
        sandbox.exec("curl -sS --max-time 20 http://example.com/ || true")
        sandbox.set_policy(None)
        assert sandbox.policy is None
        assert sandbox.why(limit=5) is not None
    with Sandbox.create(network={"egress": {"allow": [{"host": "example.com"}]}}) as sandbox:
        assert sandbox.policy is not None


def approvals() -> None:
    with Sandbox.create(policy={"commands": {"approve": [{"prefix": ["touch"]}]}}) as sandbox:
        try:
            sandbox.exec(["touch", "a"])
            raise AssertionError
        except ApprovalNeededError as error:
            id = error.approval_id
        assert [one.id for one in paddock.approvals.list()] == [id]
        assert paddock.approvals.wait(id, timeout=0.1).state == "pending"
        with contextlib.suppress(ApprovalNeededError):
            sandbox.exec(["touch", "a"], wait_for_approval=0.1)
            raise AssertionError
        with ThreadPoolExecutor() as pool:  # the agent's loop waits while somebody answers
            waiting = pool.submit(sandbox.exec, ["touch", "a"], wait_for_approval="1m")
            assert paddock.approvals.approve(id).state == "granted"
            assert waiting.result().exit_code == 0
        assert sandbox.files.exists("a")


def around() -> None:
    workspace = Workspace.open("verbs")
    with Sandbox.create(workspace=workspace, env={"A": "1"}, labels={"b": "2"}, name="verbs") as sandbox:
        sandbox.exec("echo 1 >kept", check=True)
        assert sandbox.name == "verbs"
    workspace.status()
    workspace.pin(60)
    workspace.delete(discard=True)
    assert paddock.secrets.set("VERBS", "a value of some length").version == 1
    assert [one.name for one in paddock.secrets.list()] == ["VERBS"]
    paddock.secrets.remove("VERBS")
    assert paddock.approvals.list() == ()


def main() -> None:
    with (
        tempfile.TemporaryDirectory() as directory,
        Sandbox.create(ttl="5m", idle_timeout=timedelta(minutes=4), limits=Limits(memory_mib=512)) as sandbox,
    ):
        here = Path(directory)
        (here / "project").mkdir()
        commands(sandbox)
        background(sandbox)
        files(sandbox, here)
        state(sandbox)
        mounts(here / "project")
        (here / "context").mkdir()
        built(here / "context")
    network()
    approvals()
    around()
    print("every verb", file=sys.stderr)


if __name__ == "__main__":
    main()
